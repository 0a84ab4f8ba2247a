"""A whole lab on this machine: real daemons as subprocesses, for tests, demos and notebooks.

Each daemon has a process group of its own, so that Ctrl-C reaches this process alone, which then stops the daemons in
order. If this process is killed, a small guard process, at the other end of a pipe, stops them.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpcsys.errors import ConnectError, RpcsysError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

    from rpcsys.client import Tracker

HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0  # a board under load imports onnxruntime in seconds; a daemon that takes longer hangs
GRACE_S = 2.0  # how long sessions may go on when the lab is closed
STOP_TIMEOUT_S = 8.0  # the grace and a daemon's clean-up; then the daemon is killed
POLL_S = 0.05
READY_LINE_LIMIT = 64 * 1024  # a ready line has a few hundred bytes
LOG_TAIL_LINES = 15
_BUSY = "this machine is too busy to start it, or an import hangs; try again, with fewer servers or with --preload none"

# Reads "+pid" and "-pid". When the pipe ends for any reason, the guard stops the processes that are left (SIGTERM, then
# SIGKILL) and removes the lab's folder.
_GUARD = """
import os, shutil, signal, sys, time
alive = set()
for line in sys.stdin:
    (alive.add if line[0] == "+" else alive.discard)(int(line[1:]))
for number, wait in ((signal.SIGTERM, 3), (signal.SIGKILL, 0)):
    for pid in alive:
        try:
            os.kill(pid, number)
        except OSError:
            pass
    if alive:
        time.sleep(wait)
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


@dataclass
class Daemon:
    """One daemon of a lab. ``port`` is 0 before its ready line, and for a server behind the proxy."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


class Lab:
    """A tracker and device servers on this machine, also behind a proxy, started and stopped by ``with``.

    Parameters
    ----------
    servers : key -> number of device servers of that key (each takes one session at a time, unless
        ``server_args`` sets ``--slots``)
    proxy : put a proxy between clients and servers; the servers then do not listen
    tracker_args, server_args : further flags for the daemons, e.g. ``["--slots", "2"]``

    Raises
    ------
    RpcsysError : a daemon did not start within 30 s or ended at once; the message has the end of its log
    """

    def __init__(
        self,
        servers: Mapping[str, int] | None = None,
        proxy: bool = False,
        *,
        tracker_args: Sequence[str] = (),
        server_args: Sequence[str] = (),
    ) -> None:
        self.servers = dict({"cpu": 1} if servers is None else servers)
        self.daemons: list[Daemon] = []
        self._proxied = proxy
        self._tracker_args = list(tracker_args)
        self._server_args = list(server_args)
        self._folder: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start all daemons and return when every server is in the tracker's summary."""
        if self._folder is not None:
            raise UsageError("the lab runs already; close() it before starting it again")
        try:
            self._start()
        except BaseException:  # Ctrl-C too: the daemons that run must be stopped
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop every daemon and remove the logs. A second call does nothing."""
        for daemon in reversed(self.daemons):
            daemon.process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for daemon in reversed(self.daemons):
            try:
                daemon.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.process.kill()
                daemon.process.wait()
            if daemon.process.stdout is not None:
                daemon.process.stdout.close()
            self._notify_guard(f"-{daemon.pid}")
        self.daemons.clear()
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None
        self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tracker_address(self) -> tuple[str, int]:
        """``(host, port)`` of the tracker."""
        if not self.daemons or not self.daemons[0].port:
            raise UsageError("the lab is not running; use it inside `with Lab(...) as lab:`")
        return HOST, self.daemons[0].port

    def connect(self) -> Tracker:
        """A new connection to the lab's tracker."""
        from rpcsys.client import connect_tracker

        return connect_tracker(self.tracker_address)

    def _start(self) -> None:
        with _uninterrupted():
            self._folder = Path(tempfile.mkdtemp(prefix="rpcsys-lab-"))
            guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(self._folder)]
            self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        deadline = time.monotonic() + START_TIMEOUT_S
        self._spawn("tracker", "rpcsys.tracker", self._tracker_args)
        self._await_ready(self.daemons, deadline)
        tracker = ["--tracker", "{}:{}".format(*self.tracker_address)]
        port = 0
        if self._proxied:
            self._spawn("proxy", "rpcsys.proxy", tracker)
            self._await_ready(self.daemons[1:], deadline)
            tracker, port = ["--through-proxy"], self.daemons[1].port
        first = len(self.daemons)
        for key, count in self.servers.items():
            for number in range(count):
                name = f"{key}-{number}"
                args = ["--key", key, "--name", name, *tracker, "--grace", str(GRACE_S)]
                self._spawn(name, "rpcsys.server", [*args, *self._server_args], port)
        self._await_ready(self.daemons[first:], deadline)
        self._await_registered(deadline)

    def _spawn(self, name: str, module: str, args: Sequence[str], port: int = 0) -> None:
        assert self._folder is not None
        log = self._folder / f"{len(self.daemons)}.log"
        with log.open("wb") as stderr, _uninterrupted():
            words = [sys.executable, "-m", module, "--host", HOST, "--port", str(port), *args]
            pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": stderr}
            process = subprocess.Popen(words, cwd=self._folder, env=_environment(), start_new_session=True, **pipes)
            self.daemons.append(Daemon(name, process, log))
            self._notify_guard(f"+{process.pid}")

    def _await_ready(self, daemons: Sequence[Daemon], deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            output = {daemon.name: b"" for daemon in daemons}
            for daemon in daemons:
                assert daemon.process.stdout is not None
                selector.register(daemon.process.stdout, selectors.EVENT_READ, daemon)
            while selector.get_map():
                events = selector.select(deadline - time.monotonic())
                if not events:
                    late = next(iter(selector.get_map().values())).data
                    raise _failed(late, f"printed no ready line within {START_TIMEOUT_S:g} s: {_BUSY}")
                for key, _ in events:
                    daemon = key.data
                    data = os.read(key.fd, 4096)
                    output[daemon.name] += data
                    if b"\n" in data:
                        daemon.port = _ready_port(daemon, output[daemon.name])
                        selector.unregister(key.fileobj)
                    elif not data or len(output[daemon.name]) > READY_LINE_LIMIT:
                        raise _failed(daemon, _ending(daemon))

    def _await_registered(self, deadline: float) -> None:
        wanted = {f"server:{key}": count for key, count in self.servers.items() if count}
        with self.connect() as tracker:
            while True:
                rows = [row["key"] for row in tracker.summary()["server_info"]]
                if all(rows.count(key) >= count for key, count in wanted.items()):
                    return
                for daemon in self.daemons:
                    if daemon.process.poll() is not None:
                        raise _failed(daemon, _ending(daemon))
                if time.monotonic() > deadline:
                    late = f"the lab's servers did not register with its tracker within {START_TIMEOUT_S:g} s"
                    raise ConnectError(f"{late}: {_BUSY}")
                time.sleep(POLL_S)

    def _notify_guard(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError):  # the guard was killed; the lab works without it
                self._guard.stdin.write(f"{line}\n".encode())
                self._guard.stdin.flush()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until a started process is recorded: else `close` would not stop it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if threading.current_thread() is not threading.main_thread() or None in before.values():
        yield  # signals raise in the main thread only
        return
    came: list[int] = []
    for number in before:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in dict.fromkeys(came):
            signal.raise_signal(late)


def _environment() -> dict[str, str]:
    """This process's environment, with a PYTHONPATH on which daemons in any folder find this rpcsys."""
    home = str(Path(__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}


def _ready_port(daemon: Daemon, output: bytes) -> int:
    try:
        ready: Any = json.loads(output.split(b"\n", 1)[0])
        return int(ready["port"] or 0)
    except (ValueError, KeyError, TypeError):
        raise _failed(daemon, f"printed {output[:80]!r} instead of its ready line") from None


def _ending(daemon: Daemon) -> str:
    try:
        return f"ended with exit status {daemon.process.wait(1.0)}"
    except subprocess.TimeoutExpired:
        return "closed its standard output before it was ready"


def _failed(daemon: Daemon, what: str) -> RpcsysError:
    tail = daemon.tail()
    text = f"the lab's {daemon.name} {what}"
    return RpcsysError(f"{text}; the end of its log:\n{tail}" if tail else f"{text} and logged nothing")
