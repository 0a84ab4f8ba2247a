"""What a device reports as an error, as the exception a user catches: the one border between them."""

from __future__ import annotations

from typing import Type

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


def error_of(frame: Frame) -> errors.RpcsysError:
    """The exception for an ERROR frame. A peer's malformed one becomes a plain `RemoteError`."""
    name = str(frame.get("type", "Error"))
    message = str(frame.get("message", "the device gave no message"))
    if name in _SESSION_ERRORS:
        session_error: Type[errors.RpcsysError] = getattr(errors, name)
        return session_error(message)
    if not frame.call_id and name != "Busy":
        return errors.SessionLost(f"the device ended the session: {name}: {message}")
    remote_error: Type[errors.RemoteError] = (
        getattr(errors, name) if name in _REMOTE_ERRORS else errors.RemoteError
    )
    return remote_error(
        message,
        type=name,
        remote_traceback=str(frame.get("traceback", "")),
        retryable=frame.get("retryable") is True,
        fault=str(frame.get("fault", "user")),
    )
