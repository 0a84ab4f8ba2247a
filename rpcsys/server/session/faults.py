"""What went wrong on the device, as the head of an ERROR frame: the one border between the two."""

from __future__ import annotations

import traceback as tracebacks
from typing import Any, Dict

from rpcsys import errors
from rpcsys.errors import NativeError, RemoteError, RpcsysError, one_line
from rpcsys.server.sandbox import limits

#: The end of a traceback is what tells; a head holds 1 MiB.
_MAX_TRACEBACK = 64000


def error_fields(
    kind: str, message: str, traceback: str = "", fault: str = "user", retryable: bool = False
) -> Dict[str, Any]:
    """The head of an ERROR frame."""
    return {"type": kind, "message": message, "traceback": traceback, "retryable": retryable, "fault": fault}


def described(error: Exception) -> Dict[str, Any]:
    """The head of an ERROR. Errors of ours explain themselves; a user's come with their traceback."""
    if isinstance(error, NativeError):
        # A kind of native code's own choosing must not pass for one of the session's.
        kind = "NativeError" if hasattr(errors, error.kind) else error.kind
        return error_fields(kind, str(error), error.backtrace[-_MAX_TRACEBACK:])
    if isinstance(error, RemoteError):
        return error_fields(type(error).__name__, one_line(error, None), fault=error.fault, retryable=error.retryable)
    if isinstance(error, RpcsysError):
        return error_fields(type(error).__name__, one_line(error, None))
    trace = "".join(tracebacks.format_exception(type(error), error, error.__traceback__))
    hint = limits.hint(trace)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's exception may fail at anything
        message = "an exception whose text cannot be made"
    return error_fields(type(error).__name__, (message + hint).lstrip("; "), trace[-_MAX_TRACEBACK:])
