"""What all daemons have in common: flags, ports, the ready line, service manager, signals, exit statuses.

Standard library only, without asyncio: a board's server uses this.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import signal
import socket
import sys
from types import FrameType
from typing import Any, Callable, NoReturn, Optional, Tuple

from rpcsys import __version__
from rpcsys.errors import ConfigError, PortRangeError, RpcsysError, UsageError, one_line
from rpcsys.link.address import parse_address, parse_tracker
from rpcsys.wire import tokens

_NO_MEMORY = (
    b"rpcsys: error: no memory is left, so this process ends; a service manager starts it again. Raise its limit "
    b"(MemoryMax=, ulimit -v), or find the largest requests in its log\n"
)
_HOW_TO_LISTEN = {
    errno.EADDRNOTAVAIL: "; give an address of this machine, or 0.0.0.0 for all",
    errno.EACCES: "; ports below 1024 are the system's: give one above",
}
_BACKLOG = 16_384  # a lab's clients may all connect at once; the kernel reduces it to its own limit
_NOTIFY_S = 1.0  # how long a service manager that does not read may block a daemon


def _typed() -> str:
    """What a user typed to start this daemon: ``rpcsys server`` or ``python3 -m rpcsys.server``; "" if not known.

    The first is taken from the environment, so that no session has it.
    """
    typed = os.environ.pop("RPCSYS_COMMAND", "")
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    package, _, last = ("" if spec is None else spec.name).rpartition(".")
    return typed or (f"python3 -m {package}" if package.startswith("rpcsys.") and last == "__main__" else "")


_TYPED = _typed()  # which messages begin with


class Parser(argparse.ArgumentParser):
    """Parses the flags of the command ``name``. Raises `UsageError` for a wrong one."""

    def __init__(self, name: str, **more: Any) -> None:
        super().__init__(prog=_TYPED or name, **more)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse ``args``; for a flag that does not exist, the line names the nearest one that does.

        None: the process's own. A token among them is refused before anything is read.
        """
        tokens.refuse_visible(sys.argv[1:] if args is None else args)
        flags, unknown = self.parse_known_args(args, namespace)
        if unknown:
            import difflib  # for a mistake only: a board's memory does not hold it

            flag = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(flag, self._option_string_actions, 1) if flag[:1] == "-" else []
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {near[0]}?" if near else ""))
        return flags

    def has(self, flag: str) -> bool:
        """Whether ``flag`` is one of the command's flags."""
        return flag in self._option_string_actions

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with ``message`` and where the flags are explained."""
        raise UsageError(f"{message} (see {self.prog} --help)") from None


def port_number(text: str) -> int:
    """Parse a flag's port, 0 to 65535; argparse shows the message of the error."""
    if not (text.isascii() and text.isdigit() and int(text[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0 to 65535)")
    return int(text)


def port_end(text: str) -> int:
    """Parse a flag's first port that is not to be tried, 1 to 65536."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) <= 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no end of a range of ports (1 to 65536)")
    return int(text)


def seconds(text: str) -> float:
    """Parse a flag's time, from 0 on."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return number


def number_of(what: str) -> Callable[[str], int]:
    """What parses a flag's number of ``what``, from 1 on."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) < 10**8):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {what}")
        return int(text)

    return parse


def address(text: str) -> Tuple[str, int]:
    """Parse a flag's HOST:PORT."""
    try:
        return parse_address(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def tracker(text: str) -> Tuple[str, int]:
    """Parse a flag's HOST:PORT of a tracker, or those of its replicas with commas between."""
    try:
        return parse_tracker(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def not_empty(text: str) -> str:
    """The text of a flag that may not be empty: "" mostly is a shell's variable without a value."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty; is a variable of the shell not set?")
    return text


def end_of_ports(port: int, count: int) -> int:
    """The first port not to try, where ``count`` ports from ``port`` on are tried and none is above 65535."""
    return min(port + count, 65536)


def bind(host: str, port: int, port_end: int, flag: str = "--port", *, reuse_port: bool = False) -> socket.socket:
    """Make a listening, non-blocking socket on the first free port of ``[port, port_end)``; port 0 takes any.

    ``flag``: the one that sets ``port``; errors name it. ``reuse_port``: share it with others that do. Raises
    `PortRangeError` (every port of the range is taken), `ConfigError` (no such host here, no right to the port, or an
    empty range).
    """
    port_end = 1 if port == 0 else min(port_end, 65536)
    if port >= port_end:
        raise ConfigError(
            f"no port in [{port}, {port_end}): {flag}-end is the first port not to try; give a higher one"
        )
    try:
        found = socket.getaddrinfo(host or None, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        how = "give an address of this machine, or 0.0.0.0 for all"
        raise ConfigError(f"cannot listen on {host!r}: there is no such host; {how}") from None
    # A name such as localhost has several addresses: take IPv4's, to which TVM's tools connect.
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    for number in range(port, port_end):
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((address[0], number, *address[2:]))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                reason = error.strerror or str(error)
                how = _HOW_TO_LISTEN.get(error.errno or 0, "")
                raise ConfigError(f"cannot listen on {host}:{number}: {reason}{how}") from None
    more = " (0 takes any free one)" if flag == "--port" else ""
    where = f"no free port in [{port}, {port_end}) on {host}"
    raise PortRangeError(f"{where}: stop what listens there, or give another {flag}{more}")


def announce(
    kind: str, host: str, port: Optional[int], *, http_port: Optional[int] = None, web_port: Optional[int] = None,
    **others: Optional[int],
) -> None:  # fmt: skip
    """Print the ready line: one line of JSON, the only thing a daemon prints to standard output.

    ``others``: ports that daemons of this kind alone have.
    It also notifies a service manager that requests it (systemd's ``Type=notify``).
    """
    ports = {"port": port, "http_port": http_port, "web_port": web_port, **others}
    line = {"ready": kind, "host": host, **ports, "pid": os.getpid(), "version": __version__}
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except OSError:
        # Without a reader the daemon serves all the same; the interpreter's flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    notify("READY=1")


def notify(text: str) -> None:
    """Send the service manager ``text``, as sd_notify(3) does; nothing happens without a manager.

    ``STOPPING=1`` starts the manager's timeout: do not send it while sessions may still take any time.
    """
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(_NOTIFY_S)
        with contextlib.suppress(OSError):  # without its manager the daemon serves all the same
            sender.sendto(text.encode(), "\0" + place[1:] if place[0] == "@" else place)


class Watchdog:
    """Notifies the service manager's watchdog. The daemon's own loop does so: while it hangs, no message is sent."""

    def __init__(self) -> None:
        asked = os.environ.get("WATCHDOG_USEC", "")
        mine = os.environ.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        #: Seconds between two messages, a third of the manager's timeout; None without a watchdog.
        self.every: Optional[float] = int(asked) / 3e6 if mine and asked.isdigit() and int(asked) else None
        self._due = 0.0

    def due(self) -> Optional[float]:
        """When the next message is due, in seconds of the loop's clock."""
        return None if self.every is None else self._due

    def look(self, now: float) -> None:
        """Send a message if it is due."""
        if self.every is not None and now >= self._due:
            notify("WATCHDOG=1")
            self._due = now + self.every


def end_without_memory() -> NoReturn:
    """End this process at once, with a line on standard error: a half-done step cannot be undone.

    Nothing is closed or written: that takes memory, too, and peers and the state directory can cope with a kill.
    """
    try:
        os.write(2, _NO_MEMORY)
    finally:
        os._exit(RpcsysError.exit_status)


def run(main: Callable[[], int], name: str) -> int:
    """Run ``main``; return its exit status. An `RpcsysError` becomes one line on standard error, and its status."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # the caller has closed it
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - for the rest of the process
    try:
        return main()
    except RpcsysError as error:
        sys.stderr.write(f"{_TYPED or name}: error: {one_line(error)}\n")
        return error.exit_status
    except MemoryError:
        end_without_memory()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as in `announce`
        return 0
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        sys.stderr.write(f"{_TYPED or name}: error: too many open files: raise the limit, with ulimit -n 1024, say\n")
        return RpcsysError.exit_status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


class Signals:
    """SIGTERM, SIGINT and those in ``also`` as a readable descriptor, for loops on selectors and on asyncio alike.

    Make it in the main thread. Until it is closed, Ctrl-C raises no KeyboardInterrupt.
    """

    def __init__(self, *also: signal.Signals) -> None:
        self._came = bytearray()  # the numbers of the signals
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # A signal that comes right before the loop's system call wakes the loop, though its handler runs later.
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT, *also)}

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        self._came.append(number)
        with contextlib.suppress(BlockingIOError):  # the buffer is full: enough bytes wake the loop
            self._writer.send(b".")  # for a loop that has set its own wake-up descriptor since

    def fileno(self) -> int:
        """Readable once a signal has come."""
        return self._reader.fileno()

    def received(self) -> bytes:
        """The numbers of the signals that came since the last call."""
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)
        came = bytes(self._came)
        del self._came[: len(came)]
        return came

    def close(self) -> None:
        """Restore the former signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()
