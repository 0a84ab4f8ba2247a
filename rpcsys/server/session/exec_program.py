"""One program that a client has started: its process, its terminal, and the streams of both."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import termios
import threading
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from rpcsys.byte_streams import ByteStream, pipe_for
from rpcsys.errors import ProgramError, ProgramNotFound, ProtocolError
from rpcsys.pump import Pump
from rpcsys.wire.byte_streams import CLOSE, EXIT, RESIZE, SIGNAL, StreamMessage

if TYPE_CHECKING:
    from rpcsys.server.session.program_groups import ProgramGroups

IN, OUT, ERR = range(3)  # a program's streams by number; with a terminal the first one is all
_END_OF_INPUT = b"\x04"  # to a terminal: Ctrl-D

Size = Tuple[int, int]


class BoardProgram:
    """A program with ``id`` in a process group of its own. It is started when this is made.

    ``argv``: the program, found in ``PATH`` if it is no path, and its arguments. ``size``: the rows and columns of its
    terminal; without one it has pipes. ``groups`` has its process group while it runs.

    Raises `ProgramNotFound`, `ProgramError`.
    """

    def __init__(
        self, pump: Pump, id: int, argv: List[str], folder: str, environment: Dict[str, str], size: Optional[Size],
        groups: Optional[ProgramGroups] = None,
    ) -> None:  # fmt: skip
        self._pump = pump
        self._id = id
        self._groups = groups
        self._lock = threading.Lock()  # its process is reaped, or signalled
        self._terminal = -1
        start = self._with_pipes if size is None else self._with_terminal
        with _errors(argv[0], folder):
            self._streams = start(argv, folder, environment, size or (0, 0))
        if groups is not None:
            groups.add(self.pid)
        pump.register(id, self._take, *self._streams)
        threading.Thread(target=self._wait, name="rpcsys-program", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process, in the session's own PID namespace."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process has not ended."""
        return self._process.returncode is None

    def _with_pipes(self, argv: List[str], folder: str, environment: Dict[str, str], _: Size) -> List[ByteStream]:
        pipes = [pipe_for(reads=number != IN) for number in (IN, OUT, ERR)]
        ours, theirs = zip(*pipes)
        try:
            self._process = _started(argv, folder, environment, theirs)
        except BaseException:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        sources = [ByteStream(self._id, number, source=ours[number]) for number in (OUT, ERR)]
        return [ByteStream(self._id, IN, target=ours[IN]), *sources]

    def _with_terminal(self, argv: List[str], folder: str, environment: Dict[str, str], size: Size) -> List[ByteStream]:
        ours, theirs = os.openpty()
        try:
            _resize(theirs, size)
            self._process = _started(argv, folder, environment, (theirs,) * 3, own_terminal=True)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        self._terminal = os.dup(ours)  # lasts as long as this object: sizes are set by another thread
        return [ByteStream(self._id, IN, ours, ours, lambda: os.write(ours, _END_OF_INPUT))]

    def _take(self, message: StreamMessage) -> None:
        """Handle a message of the client that is no data. Raises `ProtocolError`."""
        if message.op == SIGNAL:
            self._signal(message.amount)
        elif message.op == RESIZE and self._terminal >= 0:
            with contextlib.suppress(OSError):  # the program is gone
                _resize(self._terminal, (message.rows, message.columns))
        elif message.op == CLOSE:
            self._signal(signal.SIGKILL)
        elif message.op != RESIZE:
            raise ProtocolError(f"a program takes no message {message.op!r}")

    def _signal(self, number: int) -> None:
        with self._lock, contextlib.suppress(OSError):  # no such signal, or a user that it may not signal
            if self._process.returncode is None:
                os.killpg(self._process.pid, number)

    def _wait(self) -> None:
        """Report the program's end. A terminal ends with it, whoever still has it."""
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        if self._groups is not None:
            self._groups.remove(self.pid)
        with self._lock:
            status = self._process.wait()
        self._pump.tell(self._id, StreamMessage(EXIT, amount=status))
        if self._terminal >= 0:
            self._pump.drain(self._streams[IN])

    def __del__(self) -> None:
        if getattr(self, "_terminal", -1) >= 0:
            os.close(self._terminal)


def _started(
    argv: List[str], folder: str, environment: Dict[str, str], ends: Tuple[int, ...], own_terminal: bool = False
) -> subprocess.Popen[bytes]:
    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    more: Dict[str, Any] = {"preexec_fn": take_terminal} if own_terminal else {}
    stdin, stdout, stderr = ends
    return subprocess.Popen(
        argv, cwd=folder, env=environment, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, **more
    )


def _resize(terminal: int, size: Size) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


@contextlib.contextmanager
def _errors(name: str, folder: str) -> Iterator[None]:
    """Turn what starting a program raises into our errors."""
    try:
        yield
    except ValueError as error:  # a byte of zero in an argument
        raise ProgramError(f"{name[:200]!r} cannot be started: {error}") from None
    except OSError as error:
        if not os.path.isdir(folder):
            raise ProgramError(f"there is no folder {folder} on the device") from None
        if isinstance(error, FileNotFoundError):
            where = "at this path" if "/" in name else "in its PATH"
            raise ProgramNotFound(f"the device has no program {name[:200]!r} {where}; check its name") from None
        text = f"{name[:200]!r} cannot be started on the device: {error.strerror or error}"
        raise ProgramError(text) from None
