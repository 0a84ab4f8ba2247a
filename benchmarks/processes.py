"""Processes that are pinned to a core, print a ready line in JSON, and end with their parent."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
HIDE_NUMPY = ROOT / "benchmarks" / "hide_numpy"

CPUCLOCK_SCHED = 2  # a process's clock has its number in the other bits: clock_getcpuclockid(3)

READY_SECONDS = 60.0  # importing tvm takes several seconds on a busy machine
STOP_SECONDS = 3.0


class ProcessFailed(Exception):
    """A process has ended, or has printed no line in time; the message contains its last log line."""


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process and its descendants, exact where the kernel's ticks (10 ms) are not."""
    return sum(time.clock_gettime((~one << 3) | CPUCLOCK_SCHED) for one in tree(pid))


def environment(*, hide_numpy: bool = False, plain: bool = False) -> dict[str, str]:
    """The environment of a measured process: this tree is importable, numerical libraries have one thread.

    ``plain``: rpcsys without its C library, in the processes that this one starts, too.
    """
    paths = [str(ROOT)]
    if hide_numpy:
        paths.insert(0, str(HIDE_NUMPY))
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **own, **({"RPCSYS_SPEEDUPS": "0"} if plain else {})}


class Process:
    """A Python program of ours, started through :mod:`benchmarks.launch`; lines of JSON both ways.

    ``arguments`` follow ``python``: for instance ``("-m", "rpcsys.server", "--port", "0")``.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        core: int,
        log: Path,
        hide_numpy: bool = False,
        plain: bool = False,
        own_network: bool = False,
    ) -> None:
        launch = [sys.executable, "-m", "benchmarks.launch", "--core", str(core), "--parent", str(os.getpid())]
        launch += ["--own-network"] if own_network else []
        self._program = [sys.executable, *arguments]
        self._log = log
        self._buffer = b""
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [*launch, "--", *self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
                env=environment(hide_numpy=hide_numpy, plain=plain),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to it alone; wait until it has ended."""
        self._process.kill()
        self._process.wait()

    def send(self, message: dict[str, Any]) -> None:
        """Write one line of JSON to its standard input. Raises ProcessFailed if it has ended."""
        try:
            self._pipe("stdin").write(json.dumps(message).encode() + b"\n")
            self._pipe("stdin").flush()
        except OSError:
            raise self._failed("is gone") from None

    def receive(self, timeout: float = READY_SECONDS) -> dict[str, Any]:
        """The next line of its output that is a JSON object. Raises ProcessFailed after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                if line.startswith(b"{"):
                    return json.loads(line)
                continue
            self._read_more(deadline, timeout)

    def stop(self) -> None:
        """Terminate it, then kill its process group; wait until it has ended."""
        self._process.stdin and self._process.stdin.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._pipe("stdout").close()

    def _read_more(self, deadline: float, timeout: float) -> None:
        stdout = self._pipe("stdout")
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([stdout], [], [], left)[0]:
            raise self._failed(f"said nothing for {timeout:g} s")
        data = os.read(stdout.fileno(), 1 << 16)
        if not data:
            raise self._failed("ended")
        self._buffer += data

    def _pipe(self, name: str) -> Any:
        return getattr(self._process, name)

    def _failed(self, how: str) -> ProcessFailed:
        words = " ".join(self._program[1:])
        try:
            tail = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        except OSError:
            tail = []
        return ProcessFailed(f"{words} {how}" + "".join(f": {line}" for line in tail))
