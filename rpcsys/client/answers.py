"""Checks of the answers of trackers and devices, and a device's errors as exceptions.

Every field that this package reads has a check. Further fields of a newer peer stay in the answer; a missing or wrong
field is an error of one sentence. `listings` checks the answers that no board reads.
"""

from __future__ import annotations

from typing import Any, Dict, List, Type, TypeVar, Union

from rpcsys import errors
from rpcsys.errors import ProtocolError
from rpcsys.wire import checks
from rpcsys.wire.checks import Check, integer, number, optional, partial, record, rows, sentence
from rpcsys.wire.frames import Frame

Handle = TypeVar("Handle")

# ------------------------------------------------------------------ a tracker's


def span(value: Any, name: str) -> float:
    """A number of seconds, of either sign: clocks differ."""
    return max(-checks.MAX_SECONDS, checks.seconds(abs(checks.number(value, name)), name) * (-1 if value < 0 else 1))


def pair(check: Check) -> Check:
    """A list of two values that ``check`` allows."""

    def check_both(value: Any, name: str) -> List[Any]:
        if type(value) is not list or len(value) != 2:
            raise checks.wrong(name, "two numbers", value)
        return [check(item, name) for item in value]

    return check_both


def _lease(value: Any, name: str) -> Dict[str, Any]:
    from rpcsys.wire.control import Lease

    Lease.from_json(value, name)
    return dict(value)


count = integer(0, checks.MAX_ID)
LIMIT = optional(span)
CHANGED = optional(checks.flag)  # trackers of earlier versions do not send it
LEASES = rows(_lease)
_place = {"host": checks.text, "port": checks.port, "key": checks.text}
_right = partial(matchkey=checks.match_key, plain=checks.flag)  # in a lab
MODULES = rows(
    record(
        **dict.fromkeys(("name", "version", "server"), sentence),
        **_place,
        **dict.fromkeys(("workers", "running", "waiting", "clients"), count),
    )
)
RIGHTS = rows(_right)


def place(value: Any, name: str) -> Dict[str, Any]:
    """Where one deploys, and what one says there."""
    kept: Dict[str, Any] = record(**_place)(value, name)
    return _right(kept, name)  # type: ignore[no-any-return]


QUEUED = record(
    position=count,
    ahead=count,
    eta_s=optional(pair(span)),
    ticket=optional(checks.text),
    holders=rows(record(user=sentence)),
)


def from_tracker(check: Check, value: Any, name: str) -> Any:
    """``value`` of a tracker's answer, checked. Raises `ProtocolError` with one sentence."""
    try:
        return check(value, name)
    except ProtocolError as error:
        raise ProtocolError(f"the tracker's answer makes no sense: {error}") from None


# ------------------------------------------------------------------ a device's

_size = integer(0, 1 << 63)
_limit = integer(1, 1 << 63)


def _extent(value: Any, name: str) -> Union[int, str, None]:
    """An extent of a shape: a size, or a name or None where it is free."""
    return sentence(value, name) if type(value) is str else optional(_size)(value, name)


def _argument(value: Any, name: str) -> Dict[str, Any]:
    kept: Dict[str, Any] = record(name=sentence)(value, name)
    return partial(dtype=optional(sentence), shape=optional(rows(_extent)))(kept, name)  # type: ignore[no-any-return]


_arguments = optional(rows(_argument))
_module = {"kind": sentence, "functions": rows(sentence), "inputs": _arguments, "outputs": _arguments}
MODULE = partial(**_module)
ARRAY = partial(dtype=sentence, shape=rows(_size), device=sentence)
FUNCTION = partial(name=sentence)
HELLO = partial(
    key=sentence,
    limit_s=optional(number),
    capabilities=partial(
        **dict.fromkeys(("loads", "kinds", "encodings"), rows(sentence)), versions=checks.table(sentence)
    ),
    machine=partial(arch=sentence, system=sentence, host=sentence),
    window=partial(calls=_limit, bytes=_limit),
    serve=partial(name=sentence, version=sentence, **_module),
)
MEMORY = record(objects=_size, bytes=_size, kept=rows(partial()))
DEVICES = record(devices=checks.table(checks.table(number)), runs=rows(checks.anything))
STATE = partial(process=checks.table(_size))
NAME = sentence
NAMES = rows(sentence)
RUN = checks.table(checks.anything)


def times(value: Any, name: str) -> Dict[str, Any]:
    """A measurement. Older servers know no energy."""
    kept: Dict[str, Any] = record(results=rows(number))(value, name)
    return partial(joules=optional(number), meters=checks.table(number))(kept, name)  # type: ignore[no-any-return]


def from_device(check: Check, value: Any, name: str) -> Any:
    """``value`` of a device's answer about ``name``, checked. Raises `ProtocolError` with one sentence."""
    try:
        return check(value, name)
    except ProtocolError as error:
        raise ProtocolError(f"what the device says of {name} makes no sense: {error}") from None


def handle(value: Any, kind: Type[Handle], name: str) -> Handle:
    """``value``, which must be an object of this kind on the device. Raises `ProtocolError`."""
    if not isinstance(value, kind):
        raise ProtocolError(f"what the device says of {name} makes no sense: it gives no such object")
    return value


# ------------------------------------------------------------------ a device's errors

#: Our errors that a device sends without a traceback of the user's code.
_SESSION_ERRORS = {
    *("ServerRefused", "SessionLost", "SessionTimeout", "MemoryLimit", "DeadlineExceeded"),
    *("PathError", "ValueNotSupported", "Cancelled"),
}
_REMOTE_ERRORS = {
    *("RemoteFileError", "RemoteFunctionError", "RemoteArgumentError", "ModelError", "Busy"),
    *("ProgramError", "ProgramNotFound", "ExecNotAllowed", "ProfileNotSupported"),
}
#: Characters of a message or a traceback: our server sends no more.
MAX_TEXT = 64000


def error_of(frame: Frame) -> errors.RpcsysError:
    """The exception for an ERROR frame. A peer's malformed one becomes a plain `RemoteError`."""
    name = _text(frame.get("type", "Error"))
    message = _text(frame.get("message", "the device gave no message"))
    if name in _SESSION_ERRORS:
        session_error: Type[errors.RpcsysError] = getattr(errors, name)
        return session_error(message)
    if not frame.call_id and name != "Busy":
        return errors.SessionLost(f"the device ended the session: {name}: {message}")
    remote_error: Type[errors.RemoteError] = getattr(errors, name) if name in _REMOTE_ERRORS else errors.RemoteError
    return remote_error(
        message,
        type=name,
        remote_traceback=_text(frame.get("traceback", "")),
        retryable=frame.get("retryable") is True,
        fault=_text(frame.get("fault", "user")),
    )


def _text(said: Any) -> str:
    return errors.printable(str(said)[:MAX_TEXT], "\n\t")
