"""ERROR frames: what went wrong on the device, for its client."""

from __future__ import annotations

import traceback as tracebacks
from typing import List

from rpcsys import errors
from rpcsys.errors import NativeError, RemoteError, RpcsysError, one_line
from rpcsys.server.sandbox import limits
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer

_MAX_TRACEBACK = 64000  # the end of a traceback says most; a head holds 1 MiB


def error_frame(
    call_id: int, kind: str, message: str, traceback: str = "", *, fault: str = "user", retryable: bool = False
) -> List[Buffer]:
    """The pieces of an ERROR for a call, or with number 0 for the session: an error of the class ``kind``."""
    fields = {"type": kind, "message": message, "traceback": traceback, "retryable": retryable, "fault": fault}
    return frames.encode(frames.ERROR, call_id, fields)


def exception_frame(call_id: int, error: Exception) -> List[Buffer]:
    """The pieces of an ERROR for what a call raised. Errors of ours are one line; a user's have their traceback."""
    kind = type(error).__name__
    if isinstance(error, NativeError):
        # A kind of native code's own choosing must not pass for one of the session's.
        kind = "NativeError" if hasattr(errors, error.kind) else error.kind
        return error_frame(call_id, kind, str(error), error.backtrace[-_MAX_TRACEBACK:])
    if isinstance(error, RemoteError):
        return error_frame(call_id, kind, one_line(error, None), fault=error.fault, retryable=error.retryable)
    if isinstance(error, RpcsysError):
        return error_frame(call_id, kind, one_line(error, None))
    trace = "".join(tracebacks.format_exception(type(error), error, error.__traceback__))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's exception may fail at anything
        message = "an exception whose text cannot be made"
    return error_frame(call_id, kind, (message + limits.hint(trace)).lstrip("; "), trace[-_MAX_TRACEBACK:])
