"""Functions of one session that are timed in turns, one beside the other, in an order that the caller has drawn."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Sequence, Tuple, Union

from rpcsys.client import answers
from rpcsys.client.calls import CallFuture
from rpcsys.client.remote import RemoteFunction, RemoteModule
from rpcsys.errors import NotSupported, ProtocolError, UsageError
from rpcsys.wire import checks
from rpcsys.wire.checks import number, optional, partial, record, rows
from rpcsys.wire.frames import Frame

if TYPE_CHECKING:
    from rpcsys.client.session import Session

#: A function, or a module for its ``main``, and its arguments.
TimedCall = Tuple[Union[RemoteFunction, RemoteModule], Sequence[Any]]

_COLUMNS = dict.fromkeys(("seconds", "own_cpu", "thread_cpu", "switches"), number)
_SHOWN = {"others_cpu": optional(number), "waited": optional(number)}  # where the board shows them
_STATE = checks.table(checks.anything)
TURNS = record(
    **{name: rows(check) for name, check in {**_COLUMNS, **_SHOWN}.items()}, board=partial(before=_STATE, after=_STATE)
)


def submit(
    session: Session, calls: Sequence[TimedCall], order: Sequence[int], number: Sequence[int], limit_s: float
) -> CallFuture:
    """What `Session.submit_turns` returns; raises what that does."""
    if session.info.get("capabilities", {}).get("turns") is not True:
        where = "{}:{}".format(*session.address)
        raise NotSupported(f"the server at {where} times no functions in turns; update rpcsys there")
    targets = [[_target(function), list(args)] for function, args in calls]
    fields = {"f": "session.time_turns", "a": [targets, list(order), list(number), limit_s]}
    return session._submit(fields, functools.partial(_told, session, len(order)))


def _target(function: Union[RemoteFunction, RemoteModule]) -> Any:
    found = function["main"] if isinstance(function, RemoteModule) else function
    if not isinstance(found, RemoteFunction):
        raise UsageError(f"a function of a session is timed in turns, not a {type(function).__name__}")
    return list(found._target) if isinstance(found._target, tuple) else found._target


def _told(session: Session, most: int, frame: Frame) -> Any:
    """The report in a device's answer, of at most so many turns. Raises `ProtocolError`."""
    report = answers.from_device(TURNS, session._result(frame), "turns")
    lengths = {len(report[name]) for name in (*_COLUMNS, *_SHOWN)}
    if len(lengths) != 1 or lengths.pop() > most or min(report["seconds"], default=1.0) < 0:
        raise ProtocolError("what the device says of turns makes no sense: they are not those that were asked for")
    return report
