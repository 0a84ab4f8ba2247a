"""What every daemon does alike: flags, ports, the ready line, service manager, signals, exit statuses.

Standard library only, and no asyncio: a board's server starts with this.
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
from typing import Callable, NoReturn, Optional

from rpcsys import __version__
from rpcsys.errors import ConfigError, PortRangeError, RpcsysError, UsageError, one_line

_NO_MEMORY = (
    b"rpcsys: error: no memory is left, so this process ends; a service manager starts it again. Raise its limit "
    b"(MemoryMax=, ulimit -v), or see in its log who asked for so much\n"
)
_BACKLOG = 1024  # a lab's clients may all come at once; the kernel clips it to its own limit
_NOTIFY_S = 1.0  # how long a service manager that does not read may hold up a daemon


class Parser(argparse.ArgumentParser):
    """Flags of a command; a bad one is told in one line, with exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, on one line of standard error, and exit with 2."""
        line = " ".join(message.split())
        sys.stderr.write(f"{self.prog}: error: {line} (see {self.prog} --help)\n")
        raise SystemExit(UsageError.exit_status)


def port_number(text: str) -> int:
    """A flag's port, 0 to 65535 (argparse shows the message of what this raises)."""
    if not (text.isascii() and text.isdigit() and int(text[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0 to 65535)")
    return int(text)


def bind(host: str, port: int, port_end: int) -> socket.socket:
    """A listening, non-blocking socket on the first free port of ``[port, port_end)``; port 0 is any.

    Raises `PortRangeError` (every port of the range is taken), `ConfigError` (no such host here, no right to the
    port, or an empty range).
    """
    if port == 0:
        port_end = 1
    if port >= port_end:
        raise ConfigError(f"no port in [{port}, {port_end}): --port-end is exclusive")
    try:
        found = socket.getaddrinfo(host or None, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ConfigError(f"cannot listen on {host!r}: there is no such host") from None
    # Several addresses stand behind a name such as localhost: the IPv4 one, as TVM's tools connect to it.
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    for number in range(port, port_end):
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address[0], number, *address[2:]))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                reason = error.strerror or str(error)
                raise ConfigError(f"cannot listen on {host}:{number}: {reason}") from None
    raise PortRangeError(
        f"no free port in [{port}, {port_end}) on {host}: stop what listens there, or give another --port "
        "(0 takes any free one)"
    )


def announce(
    kind: str, host: str, port: Optional[int], *, http_port: Optional[int] = None, web_port: Optional[int] = None
) -> None:
    """Print the ready line: one line of JSON, the only thing a daemon prints to standard output.

    A service manager that asked for it (systemd's ``Type=notify``) is told as well.
    """
    ports = {"port": port, "http_port": http_port, "web_port": web_port}
    line = {"ready": kind, "host": host, **ports, "pid": os.getpid(), "version": __version__}
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except OSError:
        # Whoever started the daemon does not listen; that is no reason not to serve. Point the descriptor
        # elsewhere, or the interpreter would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    notify("READY=1")


def notify(text: str) -> None:
    """Tell the service manager ``text``, as sd_notify(3) has it; nothing where no manager listens.

    ``STOPPING=1`` starts the manager's timeout: not to be said while sessions may take all the time they want.
    """
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(_NOTIFY_S)
        with contextlib.suppress(OSError):  # a manager that has gone is no reason not to serve
            sender.sendto(text.encode(), "\0" + place[1:] if place[0] == "@" else place)


class Watchdog:
    """Signs of life, as often as the service manager asked for. A loop gives them itself: one that hangs gives none."""

    def __init__(self) -> None:
        asked = os.environ.get("WATCHDOG_USEC", "")
        mine = os.environ.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        #: Seconds from one sign to the next, a third of the manager's timeout; None where nobody asks.
        self.every: Optional[float] = int(asked) / 3e6 if mine and asked.isdigit() and int(asked) else None
        self._due = 0.0

    def due(self) -> Optional[float]:
        """When the next sign is to be given, in seconds of the loop's clock."""
        return None if self.every is None else self._due

    def look(self, now: float) -> None:
        """Give a sign if it is time."""
        if self.every is not None and now >= self._due:
            notify("WATCHDOG=1")
            self._due = now + self.every


def end_without_memory() -> NoReturn:
    """End this process at once, with a line on standard error: what it was about to do cannot be taken back.

    Nothing is closed or written: that takes memory too, and peers and the state directory are ready for a kill.
    """
    try:
        os.write(2, _NO_MEMORY)
    finally:
        os._exit(RpcsysError.exit_status)


def run(main: Callable[[], int], name: str) -> int:
    """The exit status of ``main``; an error on purpose becomes one line on standard error, and its status."""
    try:
        return main()
    except RpcsysError as error:
        sys.stderr.write(f"{name}: error: {one_line(error)}\n")
        return error.exit_status
    except MemoryError:
        end_without_memory()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as in `announce`
        return 0
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


class Signals:
    """SIGTERM, SIGINT and those in ``also`` as a readable descriptor, for loops on selectors and on asyncio alike.

    To be made in the main thread. While one lives, Ctrl-C raises no KeyboardInterrupt.
    """

    def __init__(self, *also: signal.Signals) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT, *also)}

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        # A wait in the kernel is interrupted for this handler and then resumed, and finds the byte. (Python's
        # own wake-up descriptor would be quicker, but event loops take it for themselves.)
        with contextlib.suppress(BlockingIOError):  # many signals are as good as one
            self._writer.send(bytes([number]))

    def fileno(self) -> int:
        """Readable once a signal has come."""
        return self._reader.fileno()

    def received(self) -> bytes:
        """The numbers of the signals that came since the last call."""
        try:
            return self._reader.recv(64)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Put things back as they were."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()
