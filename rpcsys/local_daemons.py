"""Daemons on this machine as subprocesses of this one: what a lab in one process and ``rpcsys serve`` start.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpcsys.errors import RpcsysError

HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0  # a board under load imports onnxruntime in seconds; a daemon that takes longer hangs
STOP_TIMEOUT_S = 8.0  # the grace and a daemon's clean-up; then the daemon is killed
READY_LINE_LIMIT = 64 * 1024  # a ready line has a few hundred bytes
LOG_TAIL_LINES = 15
BUSY = "this machine is too busy to start it, or an import hangs; try again, with fewer servers or with --preload none"

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
    """A daemon. Before its ready line, ``ready`` is empty and ``port`` 0; so is that of a server behind a proxy."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ready: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def port(self) -> int:
        """The port that it serves at."""
        return int(self.ready.get("port") or 0)

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


class LocalDaemons:
    """Starts daemons on loopback, whose logs are in a temporary folder, and stops them together.

    ``owner``: whose they are, in messages.
    """

    def __init__(self, owner: str) -> None:
        self.all: list[Daemon] = []
        self.folder: Path | None = None
        self._owner = owner
        self._guard: subprocess.Popen[bytes] | None = None

    def open(self) -> Path:
        """Make the folder, and start the guard; the folder."""
        with _uninterrupted():
            self.folder = Path(tempfile.mkdtemp(prefix="rpcsys-lab-"))
            guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(self.folder)]
            self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        return self.folder

    def spawn(
        self, name: str, module: str, args: Sequence[str], port: int = 0, environment: Mapping[str, str] | None = None
    ) -> Daemon:
        """Start the daemon ``python -m module`` at ``port``, or at any; returns at once."""
        assert self.folder is not None
        log = self.folder / f"{len(self.all)}.log"
        with log.open("wb") as stderr, _uninterrupted():
            words = [sys.executable, "-m", module, "--host", HOST, "--port", str(port), *args]
            env = {**_environment(), **(environment or {})}
            pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": stderr}
            process = subprocess.Popen(words, cwd=self.folder, env=env, start_new_session=True, **pipes)
            self.all.append(Daemon(name, process, log))
            self._notify_guard(f"+{process.pid}")
        return self.all[-1]

    def await_ready(self, daemons: Sequence[Daemon], deadline: float) -> None:
        """Read their ready lines. Raises `RpcsysError` if one ends, or prints none in time (of `time.monotonic`)."""
        with selectors.DefaultSelector() as selector:
            output = {daemon.name: b"" for daemon in daemons}
            for daemon in daemons:
                assert daemon.process.stdout is not None
                selector.register(daemon.process.stdout, selectors.EVENT_READ, daemon)
            while selector.get_map():
                events = selector.select(deadline - time.monotonic())
                if not events:
                    late = next(iter(selector.get_map().values())).data
                    raise self._failed(late, f"printed no ready line within {START_TIMEOUT_S:g} s: {BUSY}")
                for key, _ in events:
                    daemon = key.data
                    data = os.read(key.fd, 4096)
                    output[daemon.name] += data
                    if b"\n" in data:
                        daemon.ready = self._ready(daemon, output[daemon.name])
                        selector.unregister(key.fileobj)
                    elif not data or len(output[daemon.name]) > READY_LINE_LIMIT:
                        raise self._failed(daemon, _ending(daemon))

    def check_running(self) -> None:
        """Raise `RpcsysError` if one has ended."""
        for daemon in self.all:
            if daemon.process.poll() is not None:
                raise self._failed(daemon, _ending(daemon))

    def stop(self) -> None:
        """Stop all, the last first; those that do not end are killed."""
        for daemon in reversed(self.all):
            daemon.process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for daemon in reversed(self.all):
            try:
                daemon.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.process.kill()
                daemon.process.wait()
            if daemon.process.stdout is not None:
                daemon.process.stdout.close()
            self._notify_guard(f"-{daemon.pid}")
        self.all.clear()

    def close(self) -> None:
        """Stop all, and remove the folder. A second call does nothing."""
        self.stop()
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None
        self.folder = None

    def _notify_guard(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError):  # the guard was killed; the daemons work without it
                self._guard.stdin.write(f"{line}\n".encode())
                self._guard.stdin.flush()

    def _ready(self, daemon: Daemon, output: bytes) -> Mapping[str, Any]:
        try:
            ready: dict[str, Any] = json.loads(output.split(b"\n", 1)[0])
            int(ready["port"] or 0)
        except (ValueError, KeyError, TypeError):
            raise self._failed(daemon, f"printed {output[:80]!r} instead of its ready line") from None
        return ready

    def _failed(self, daemon: Daemon, what: str) -> RpcsysError:
        tail = daemon.tail()
        text = f"{self._owner} {daemon.name} {what}"
        return RpcsysError(f"{text}; the end of its log:\n{tail}" if tail else f"{text} and logged nothing")


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


def _ending(daemon: Daemon) -> str:
    try:
        return f"ended with exit status {daemon.process.wait(1.0)}"
    except subprocess.TimeoutExpired:
        return "closed its standard output before it was ready"
