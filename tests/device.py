"""A session's process without its supervisor, for tests of the two ends of a session.

`Device` starts it and gives the client's end: a `Session`, or `Raw` frames for what no client does. `scripted_server`
is a server that says whatever a test wants.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rpcsys import stream as streams
from rpcsys.client import Session, connect
from rpcsys.client.secure_opening import SecureOpening
from rpcsys.stream import DONT_WAIT, Ended
from rpcsys.wire import frames, handshake
from rpcsys.wire.limits import DEFAULT
from tests import secured

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "device_process.py"
#: Far more than any test takes: a test that reaches it has found a wait without end.
WAIT_S = 20.0
#: The numbers of system calls.
_CALLS = {
    "x86_64": {"recv": 45, "send": 44, "sendmsg": 46, "poll": 7, "futex": 202},
    "aarch64": {"recv": 207, "send": 206, "sendmsg": 211, "poll": 73, "futex": 98},
}
OURS = handshake.Options(session=handshake.SESSION)


class Device:
    """One session process, which takes one connection at ``address``; ``job``: options of its Job.

    ``speedups``: whether it uses the C library; as this process if None.
    """

    def __init__(
        self, *, hide: tuple[str, ...] = (), limit_s: float | None = None, speedups: bool | None = None, **job: Any
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.workdir = Path(self._folder.name) / "session"
        self.workdir.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address: tuple[str, int] = listener.getsockname()
            options = {"workdir": str(self.workdir), "limit_s": limit_s, "hide": hide, "job": job}
            options["speedups"] = streams.SPEEDUPS if speedups is None else speedups
            self._key = "key"
            if secured.secure:
                self._key = secured.MATCH_KEY.text
                options.update(seed=secured.OWN.seed.hex(), matchkey=self._key)
            self.process = _start(options, listener) if hide else _fork(options, listener)

    def session(self, session_timeout: float | None = None) -> Session:
        """The client's session."""
        return connect(*self.address, key=self._key, session_timeout=session_timeout)

    def opened(self) -> Raw:
        """A connection after the handshake, before HELLO."""
        sock = socket.create_connection(self.address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opening = SecureOpening(secured.MATCH_KEY, "device") if secured.secure else None
        greeting = handshake.encode_greeting(handshake.Greeting(handshake.CLIENT, "key", OURS))
        sock.sendall(greeting if opening is None else opening.first)
        reader = handshake.AnswerReader()
        while reader.needed:
            reader.receive(sock.recv(reader.needed))
        until = time.monotonic() + WAIT_S
        return Raw(sock, None if opening is None else opening.finish(sock, None, until, DEFAULT))

    def raw(self, **hello: Any) -> Raw:
        """A connection after HELLO, for frames that are sent one by one."""
        raw = self.opened()
        assert raw.receive().kind == frames.HELLO
        raw.send(frames.HELLO, 0, {"version": 1, **hello})
        return raw

    def wait_for_call(self) -> None:
        """Wait until ``test.sleep`` or ``test.compute`` runs; once for each device."""
        until((self.workdir / "running").exists, "the call to begin")

    def reports(self) -> list[dict[str, Any]]:
        """The reports of the process without the greeting, then its outcome. Waits for its end."""
        assert self.process.stdout is not None
        out, _ = self.process.communicate(timeout=WAIT_S)
        reports = [json.loads(line) for line in out.splitlines()]
        return [report for report in reports if "opened" not in report]

    def alive(self) -> bool:
        return self.process.poll() is None

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)
        self._folder.cleanup()


def _start(options: dict[str, Any], listener: socket.socket) -> subprocess.Popen[str]:
    """A process with its own interpreter, for options that must hold before its imports."""
    words = [sys.executable, str(PROGRAM), json.dumps({**options, "fd": listener.fileno()})]
    fds = [listener.fileno()]
    return subprocess.Popen(words, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


class _Forked:
    """A child of the process that forks, as far as a `subprocess.Popen` is used here."""

    def __init__(self, pid: int, pidfd: int, stdout: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self.stdout = os.fdopen(stdout, encoding="utf-8")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def poll(self) -> int | None:
        return 0 if select.select([self._pidfd], [], [], 0)[0] else None

    def wait(self, timeout: float) -> None:
        assert select.select([self._pidfd], [], [], timeout)[0], f"process {self.pid} has not ended in {timeout} s"

    def communicate(self, timeout: float) -> tuple[str, None]:
        self.wait(timeout)
        return self.stdout.read(), None

    def __del__(self) -> None:
        self.stdout.close()
        os.close(self._pidfd)


@functools.cache
def _forking() -> socket.socket:
    """The socket of a process that forks devices, with all imported; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        words = [sys.executable, str(PROGRAM), "--fork", str(its.fileno())]
        subprocess.Popen(words, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    ours.settimeout(WAIT_S)
    return ours


def _fork(options: dict[str, Any], listener: socket.socket) -> _Forked:
    out, its_out = os.pipe()
    message = json.dumps({**options, "environ": dict(os.environ)}).encode()
    socket.send_fds(_forking(), [message], [its_out, 2, listener.fileno()])
    os.close(its_out)
    pid, fds, _, _ = socket.recv_fds(_forking(), 32, 1)
    return _Forked(int(pid), fds[0], out)


class Raw:
    """Frames over a socket, with a bound on every wait."""

    def __init__(self, sock: socket.socket, stream: streams.Stream | None = None) -> None:
        self.stream = stream or streams.open(sock)
        self.sock = sock
        self.stream.tick(WAIT_S)
        self._came: collections.deque[frames.Frame] = collections.deque()

    def send(
        self, kind: int, call_id: int = 0, fields: dict[str, Any] | None = None, body: bytes | None = None, **more: int
    ) -> None:
        head, buffers = frames.encode_head(fields) if fields else (b"", [])
        pieces = frames.pack(kind, call_id, head, buffers if body is None else [body], **more)
        self.stream.send(pieces, self._meanwhile)

    def call(self, call_id: int, function: Any, *args: Any, **more: int) -> None:
        self.send(frames.CALL, call_id, {"f": function, "a": list(args)}, **more)

    def _meanwhile(self) -> None:
        """As a client must: read while the device does not."""
        frame = self.stream.receive(DONT_WAIT)
        if frame is None:
            assert self.stream.wait(WAIT_S, write=True), f"nothing went out or came for {WAIT_S} s"
        else:
            self._came.append(frame)

    def receive(self) -> frames.Frame:
        frame = self._came.popleft() if self._came else self.stream.receive()
        assert frame is not None, f"nothing came for {WAIT_S} s"
        return frame

    def ended(self) -> bool:
        """Whether the device hangs up without another frame."""
        try:
            self.receive()
        except Ended:
            return True
        return False


def in_call(thread: threading.Thread, *names: str) -> bool:
    """Whether a thread waits in one of the named system calls."""
    numbers = {_CALLS[platform.machine()][name] for name in names}
    with contextlib.suppress(OSError, ValueError):  # it has ended, or runs
        return int(Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0]) in numbers
    return False


def until(happened: Any, what: str = "it to happen") -> None:
    """Poll until ``happened()`` is true."""
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def scripted_server(*replies: bytes, hang_up: bool = False, pause_s: float = 0) -> Iterator[tuple[str, int]]:
    """The address of a server that takes one connection, sends ``replies`` as bytes, and reads on or hangs up.

    ``pause_s``: seconds between two replies.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_pretend, args=(listener, replies, hang_up, pause_s), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(WAIT_S)


def _pretend(listener: socket.socket, replies: tuple[bytes, ...], hang_up: bool, pause_s: float) -> None:
    with contextlib.suppress(OSError):
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(WAIT_S)
            sock.recv(65536)
            for reply in replies:
                sock.sendall(reply)
                time.sleep(pause_s)
            while not hang_up and sock.recv(65536):
                pass
