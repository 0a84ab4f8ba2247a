"""What a device reports as an error, as the exception a user catches: the one border between them."""

from __future__ import annotations

from typing import Any, Type

from rpcsys import errors
from rpcsys.wire.frames import Frame

#: Errors that the device raises under a name of ours and that carry no traceback of the user's code.
_SESSION_ERRORS = (
    "ServerRefused",
    "SessionLost",
    "SessionTimeout",
    "MemoryLimit",
    "DeadlineExceeded",
    "PathError",
    "ValueNotSupported",
    "Cancelled",
)
_REMOTE_ERRORS = ("RemoteFileError", "RemoteFunctionError", "RemoteArgumentError", "ModelError", "Busy")


#: Characters of a message or a traceback: what a server of ours sends at most.
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
    """Lines that a device says for a person to read."""
    return errors.printable(str(said)[:MAX_TEXT], "\n\t")
