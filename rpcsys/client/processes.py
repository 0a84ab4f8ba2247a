"""Programs on the device, with the names of `subprocess`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import signal as signals
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from rpcsys.byte_streams import ByteStream, pipe_for
from rpcsys.errors import DeadlineExceeded, ProtocolError, UsageError
from rpcsys.pump import PIECE
from rpcsys.wire.byte_streams import EXIT, RESIZE, SIGNAL, StreamMessage

if TYPE_CHECKING:
    from typing_extensions import Self

    from rpcsys.client.byte_streams import SessionStreams

IN, OUT, ERR = range(3)  # a program's streams by number; with a terminal the first one is all
Argument = Union[str, "os.PathLike[str]"]
Call = Callable[..., Any]
_CLOSED_S = 1.0  # between two looks whether the session is lost


class CompletedProgram:
    """A program that has ended.

    Attributes
    ----------
    args : the program and its arguments
    returncode : its exit status; below zero the number of the signal that ended it
    stdout, stderr : bytes, all that it has written
    """

    def __init__(self, args: List[str], returncode: int, stdout: bytes, stderr: bytes) -> None:
        self.args = args
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr

    def __repr__(self) -> str:
        return f"<{self.args[0]!r} on the device, ended with {self.returncode}>"


class RemoteProcess:
    """A program that runs on the device, as `subprocess.Popen` has one here. Made by `Session.popen`.

    As a context manager, it closes ``stdin``, waits for the end, and closes the other two. Whatever happens to this
    client, the program ends with the session.

    Attributes
    ----------
    args : the program and its arguments
    pid : of its process, as programs in the session see it
    returncode : None while it runs; then its exit status, or below zero the number of the signal that ended it
    stdin, stdout, stderr : binary files: pipes of this process. With a terminal, what it writes is in ``stdout``, and
        ``stderr`` is empty
    """

    def __init__(self, streams: SessionStreams, args: List[str]) -> None:
        self.args = args
        self.pid = 0
        self.returncode: Optional[int] = None
        self._streams = streams
        self._id = streams.new_id()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._left = 1  # its end, and streams of output, that have not come
        ends = [pipe_for(reads=number == IN) for number in (IN, OUT, ERR)]
        self._ours = [ours for ours, _ in ends]
        self.stdin: BinaryIO = os.fdopen(ends[IN][1], "wb")
        self.stdout: BinaryIO = os.fdopen(ends[OUT][1], "rb")
        self.stderr: BinaryIO = os.fdopen(ends[ERR][1], "rb")

    def _start(self, call: Call, how: Dict[str, Any]) -> RemoteProcess:
        source, target, error = self._ours
        if "size" in how:
            os.close(error)
            streams = [ByteStream(self._id, IN, source, target)]
        else:
            streams = [ByteStream(self._id, IN, source=source)]
            streams += [ByteStream(self._id, number, target=self._ours[number]) for number in (OUT, ERR)]
        for stream in streams:
            if stream.target >= 0:
                stream.on_end = self._one_over
                self._left += 1
        self._streams.open(self._take, *streams, id=self._id)
        try:
            self.pid = call("session.exec", self._id, self.args, how)["pid"]
        except BaseException:
            self.close()
            raise
        return self

    def _take(self, message: StreamMessage) -> None:
        if message.op != EXIT:
            raise ProtocolError(f"a program sends no message {message.op!r}")
        self.returncode = message.amount
        self._over.set()
        self._one_over()

    def _one_over(self) -> None:
        with self._lock:
            self._left -= 1
        if not self._left:
            self._streams.close(self._id)

    def __repr__(self) -> str:
        state = "runs" if self.returncode is None else f"ended with {self.returncode}"
        return f"<{self.args[0]!r} on the device, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        try:
            self.wait()
        finally:
            self.close()

    def poll(self) -> Optional[int]:
        """`returncode` now; does not wait."""
        return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        """Wait until the program has ended; its ``returncode``.

        Raises `DeadlineExceeded` after ``timeout`` seconds, and `SessionLost` if the session ends before.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._over.wait(_CLOSED_S if until is None else max(0.0, min(_CLOSED_S, until - time.monotonic()))):
            broken = self._streams.broken
            if broken is not None and not self._over.is_set():
                raise broken
            if until is not None and time.monotonic() >= until:
                raise DeadlineExceeded(f"{self.args[0]!r} has not ended on the device in {timeout:g} s")
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the program and what it has started in its process group. Does nothing after its end."""
        if self.returncode is None:
            self._streams.pump.tell(self._id, StreamMessage(SIGNAL, amount=int(number)))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signals.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signals.SIGKILL)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self._streams.pump.tell(self._id, StreamMessage(RESIZE, rows=rows, columns=columns))

    def communicate(self, input: Union[bytes, BinaryIO] = b"", timeout: Optional[float] = None) -> Tuple[bytes, bytes]:
        """Send ``input``, bytes or a binary file; read all that the program writes: standard output, and error.

        After ``timeout`` seconds, kills the program and raises `DeadlineExceeded`.
        """
        with concurrent.futures.ThreadPoolExecutor(3, "rpcsys-communicate") as threads:
            threads.submit(self._write_all, input)
            outputs = [threads.submit(file.read) for file in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except BaseException:
                self.close()  # ends the threads, too
                raise
            return outputs[0].result(), outputs[1].result()

    def _write_all(self, data: Union[bytes, BinaryIO]) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):  # it takes no more, or is closed
            if isinstance(data, bytes):
                self.stdin.write(data)
            else:
                shutil.copyfileobj(data, self.stdin, PIECE)
            self.stdin.close()

    def close(self) -> None:
        """Kill the program if it runs, and close its streams. Does nothing the second time."""
        self._streams.close(self._id)
        if self.returncode is None:
            self.returncode = -signals.SIGKILL
            self._over.set()


def command(args: Sequence[Argument]) -> List[str]:
    """A program and its arguments as texts. Raises `UsageError`."""
    if isinstance(args, (str, bytes)) or not args:
        raise UsageError(f"a program is a list: [name, argument, ...], not {args!r}; a line is ['sh', '-c', line]")
    return [os.fspath(arg) for arg in args]


def described(
    cwd: Optional[str], env: Optional[Mapping[str, str]], terminal: Union[bool, Tuple[int, int]]
) -> Dict[str, Any]:
    """How a program is started, as ``session.exec`` takes it."""
    how: Dict[str, Any] = {"folder": cwd or "", "environment": dict(env or {})}
    if terminal:
        how["size"] = list(terminal) if isinstance(terminal, tuple) else [24, 80]
    return how


def started(streams: SessionStreams, call: Call, args: List[str], how: Dict[str, Any]) -> RemoteProcess:
    """See `Session.popen`. ``call`` calls one of the session's own functions."""
    return RemoteProcess(streams, args)._start(call, how)
