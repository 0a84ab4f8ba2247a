"""All errors that rpcsys raises for its users, in one tree.

A message has one line: what happened, the likely cause, and what to do next. ``exit_status`` is the status of a command
that ends with the error.
"""

from __future__ import annotations

from typing import Iterable, Optional


class RpcsysError(Exception):
    """The root of the tree. Catch it to catch everything rpcsys raises on purpose."""

    exit_status = 1


class UsageError(RpcsysError):
    """A flag, an argument or a file is invalid."""

    exit_status = 2


class ConfigError(UsageError):
    """A flag or an environment variable has a value that cannot be used."""


class PathError(UsageError):
    """A path leaves the session's directory, or is not allowed in it."""


class ValueNotSupported(UsageError):
    """A Python value has no form on the wire (an object array, say)."""


class PortRangeError(RpcsysError):
    """No port of the configured range is free."""

    exit_status = 3


class ProtocolError(RpcsysError):
    """The peer sent what the protocol does not allow. The connection is closed."""


class LimitExceeded(ProtocolError):
    """A length or a count on the wire is beyond its limit; no memory was taken for it."""


class ConnectError(RpcsysError):
    """A connection to a peer failed."""


class TrackerUnreachable(ConnectError):
    """Nothing that speaks the tracker's protocol answers at the address.

    ``stands_by``: replicas answer, and none of them leads.
    """

    def __init__(self, text: str = "", stands_by: bool = False) -> None:
        super().__init__(text)
        self.stands_by = stands_by


class TrackerLost(ConnectError):
    """The connection to the tracker ended."""


class ServerUnreachable(ConnectError):
    """Nothing that speaks the session handshake answers at the address."""


class ServerRefused(ConnectError):
    """The server refused the session: the match key is used up, or never was this server's."""


class NotSupported(ConnectError):
    """The server answered, but cannot do rpcsys/1 sessions."""


class WrongPin(ConnectError):
    """What answers is not who it should be: its certificate has another pin. It has received handshakes only."""

    exit_status = 4


class NoTls(ConnectError):
    """The peer does not encrypt, or the handshake failed. Nothing was sent in the clear."""

    exit_status = 4


class TrackerError(RpcsysError):
    """The tracker refused a request."""


class UnknownKey(TrackerError):
    """No server offers the key."""


class Unauthorized(TrackerError):
    """The lab does not know who asks: no credential, or one that is revoked, expired or another lab's."""

    exit_status = 4


class Forbidden(TrackerError):
    """The lab's rules do not allow this to who asks."""

    exit_status = 4


class WaitTimeout(TrackerError):
    """No device became free within the time allowed for waiting."""


class Cancelled(TrackerError):
    """The request was cancelled before a device was found."""


class SessionError(RpcsysError):
    """The root of errors about a running session."""


class SessionLost(SessionError):
    """The connection, the session process or the whole device is gone."""


class SessionTimeout(SessionError):
    """The session reached its time limit and was ended by the server."""


class MemoryLimit(SessionError):
    """The session took more memory than its server allows, and was ended."""


class SessionClosed(SessionError):
    """The session was used after it had been closed on this side."""


class DeadlineExceeded(SessionError):
    """A call took longer than its deadline."""


class RemoteError(RpcsysError):
    """A call failed on the device.

    Attributes
    ----------
    type : the name of the exception's class on the device; by default this class's own
    remote_traceback : the traceback there, or ""
    retryable : whether the same call may succeed on another try or another device
    fault : "user", "device" or "network": the cause that the device reports
    """

    def __init__(
        self,
        message: str,
        *,
        type: Optional[str] = None,
        remote_traceback: str = "",
        retryable: bool = False,
        fault: str = "user",
    ) -> None:
        super().__init__(message)
        self.type = self.__class__.__name__ if type is None else type
        self.remote_traceback = remote_traceback
        self.retryable = retryable
        self.fault = fault

    def __str__(self) -> str:
        text = f"{self.type}: {self.args[0]}"
        if self.remote_traceback:
            text += "\n\nTraceback on the device:\n" + self.remote_traceback.rstrip()
        return text


class RemoteFileError(RemoteError):
    """A file on the device is not there, or cannot be read or written."""


class RemoteFunctionError(RemoteError):
    """The device has no function or module of that name."""


class RemoteArgumentError(RemoteError):
    """A function was called with a wrong number, name, shape or dtype of arguments."""


class ProgramError(RemoteError):
    """A program cannot be started on the device, or its streams cannot be opened there."""

    exit_status = 126


class ProgramNotFound(ProgramError):
    """The device has no program of that name."""

    exit_status = 127


class ExecNotAllowed(RemoteError):
    """The server was started without ``--allow-exec``, or the lab's rules do not let its members run programs."""


class ModelError(RemoteError):
    """A model cannot be loaded on the device."""


class ProfileNotSupported(RemoteError):
    """What runs a module on the device tells no times of its operators."""


class Busy(RemoteError):
    """A deployed module takes no more calls or clients now. Nothing was run; try again in a moment."""


class NativeError(RpcsysError):
    """Native code that was called in this process failed. On the wire it becomes a `RemoteError`.

    Attributes
    ----------
    kind : the error's kind as native code names it, such as "ValueError"
    backtrace : the native traceback, or ""
    """

    def __init__(self, message: str, *, kind: str = "RuntimeError", backtrace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.backtrace = backtrace


class FrameError(RpcsysError):
    """A pipeline frame failed in a stage. ``__cause__`` is the stage's error.

    Attributes
    ----------
    frame : its number, counted from 0 over all frames that went into this pipeline
    stage : the name of the stage
    """

    def __init__(self, message: str, *, frame: int, stage: str) -> None:
        super().__init__(message)
        self.frame = frame
        self.stage = stage


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a change on a server, which may still take effect: the message says which, and what shows it.

    It is no `RpcsysError`, since whoever catches these goes on.
    """


def printable(text: str, keep: str = "") -> str:
    """``text`` with an escape for each character that is neither printable nor in ``keep``.

    `str.isprintable` decides, here and for all names that are received. It excludes control characters, invisible ones,
    and those that reverse the text around them (U+200B, U+202E, tags).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def there_are(names: Iterable[str]) -> str:
    """What exists, behind an error about what does not: ``there is a``, ``there are a, b`` or ``there is none``."""
    known = list(names)
    return f"there {'is' if len(known) < 2 else 'are'} {', '.join(known) or 'none'}"


def span(seconds: float) -> str:
    """A duration in its largest unit, for people: ``20 s``, ``3 min``, ``2 h``, ``5 days``."""
    for unit, least, length in (("days", 172800, 86400), ("h", 3600, 3600), ("min", 60, 60)):
        if seconds >= least:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def one_line(error: BaseException, limit: Optional[int] = 500) -> str:
    """An error's message for people: on one line, at most ``limit`` characters."""
    args = getattr(error, "args", ())
    text = str(args[0]) if isinstance(error, RemoteError) and args else str(error)
    line = printable(" ".join(text.split())) or type(error).__name__
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"
