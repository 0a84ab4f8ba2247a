"""Functions of one session that are timed in turns, one beside the other, in an order that the caller has drawn."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence, Tuple, Union

from rpcsys.client import answers
from rpcsys.client.remote import RemoteFunction, RemoteModule
from rpcsys.errors import NotSupported, ProtocolError, UsageError
from rpcsys.wire import checks
from rpcsys.wire.checks import number, optional, partial, record, rows
from rpcsys.wire.frames import Frame

#: A function, or a module for its ``main``, and its arguments.
TimedCall = Tuple[Union[RemoteFunction, RemoteModule], Sequence[Any]]

_COLUMNS = dict.fromkeys(("seconds", "own_cpu", "thread_cpu", "switches"), number)
_SHOWN = {"others_cpu": optional(number), "waited": optional(number)}  # where the board shows them
_STATE = checks.table(checks.anything)
TURNS = record(
    **{name: rows(check) for name, check in {**_COLUMNS, **_SHOWN}.items()}, board=partial(before=_STATE, after=_STATE)
)


def fields(
    hello: Dict[str, Any], address: Tuple[str, int], calls: Sequence[TimedCall], order: Sequence[int],
    number: Sequence[int], limit_s: float,
) -> Dict[str, Any]:  # fmt: skip
    """The fields of a CALL to the server with this HELLO, at ``address``. Raises what `Session.submit_turns` raises."""
    if hello.get("capabilities", {}).get("turns") is not True:
        raise NotSupported("the server at {}:{} times no functions in turns; update rpcsys there".format(*address))
    targets = [[_target(function), list(args)] for function, args in calls]
    return {"f": "session.time_turns", "a": [targets, list(order), list(number), limit_s]}


def _target(function: Union[RemoteFunction, RemoteModule]) -> Any:
    found = function["main"] if isinstance(function, RemoteModule) else function
    if not isinstance(found, RemoteFunction):
        raise UsageError(f"a function of a session is timed in turns, not a {type(function).__name__}")
    return list(found._target) if isinstance(found._target, tuple) else found._target


def told(result: Callable[[Frame], Any], most: int, frame: Frame) -> Any:
    """The report in a device's answer, of at most so many turns; ``result`` reads it. Raises `ProtocolError`."""
    report = answers.from_device(TURNS, result(frame), "turns")
    lengths = {len(report[name]) for name in (*_COLUMNS, *_SHOWN)}
    if len(lengths) != 1 or lengths.pop() > most or min(report["seconds"], default=1.0) < 0:
        raise ProtocolError("what the device says of turns makes no sense: they are not those that were asked for")
    return report
