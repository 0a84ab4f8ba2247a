"""What a tracker's answers must hold, checked before anybody uses them.

A newer tracker says more than is asked for here, which stays in the answer; one that says less, or something else, is
told of in one sentence. The rules of this file:

- Every field that this package reads has a check, so that nobody who has an answer checks it again.
- What only a desk asks for is in `rpcsys.client.listings`.
"""

from __future__ import annotations

from typing import Any, Dict, List

from rpcsys.errors import ProtocolError
from rpcsys.wire import checks
from rpcsys.wire.checks import Check, integer, optional, record, rows, sentence


def span(value: Any, name: str) -> float:
    """A number of seconds, of either sign: clocks differ."""
    return max(-checks.MAX_SECONDS, checks.seconds(abs(checks.number(value, name)), name) * (-1 if value < 0 else 1))


def _pair(value: Any, name: str) -> List[float]:
    if type(value) is not list or len(value) != 2:
        raise checks.wrong(name, "two numbers", value)
    return [span(item, name) for item in value]


def _lease(value: Any, name: str) -> Dict[str, Any]:
    from rpcsys.wire.control import Lease

    Lease.from_json(value, name)
    return dict(value)


count = integer(0, checks.MAX_ID)
some = optional(span)
MODULES = rows(
    record(
        name=sentence,
        version=sentence,
        server=sentence,
        host=checks.text,
        port=checks.port,
        key=checks.text,
        workers=count,
        running=count,
        waiting=count,
        clients=count,
    )
)
LEASES = rows(_lease)
LIMIT = optional(span)
QUEUED = record(
    position=count,
    ahead=count,
    eta_s=optional(_pair),
    ticket=optional(checks.text),
    holders=rows(record(user=sentence)),
)


def checked(check: Check, answer: Dict[str, Any], field: str) -> Any:
    """What an answer has in ``field``. Raises `ProtocolError` where it is not what ``check`` allows."""
    return one(check, answer.get(field), field)


def one(check: Check, value: Any, name: str) -> Any:
    """``value`` of an answer, if ``check`` allows it. Raises `ProtocolError`, one sentence."""
    try:
        return check(value, name)
    except ProtocolError as error:
        raise ProtocolError(f"the tracker's answer makes no sense: {error}") from None
