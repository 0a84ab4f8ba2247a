"""Subjects: each starts its server and has operations that are timed.

An operation is a context manager that yields a :class:`Trial`. The code before the yield (a new connection, an array)
and after it is not timed. Each round has its own connection: the throughput of one connection may be half or twice
that of the next.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import median
from benchmarks.processes import Process, cpu_seconds

WARM_SHARE = 0.2  # the share of a round's time for the warm-up
FEW_RUNS = 3  # the least number of warm-up runs and of timed runs: the first runs use fresh memory
MOST_BUDGETS = 4  # after this multiple of the budget, fewer runs are enough


@dataclass(frozen=True)
class Place:
    """The core of a subject's server, and the folder of its log."""

    server_core: int
    folder: Path
    hide_numpy: bool = False


class Trial:
    """A function ``run`` that is timed repeatedly; ``after`` is called after each run, untimed.

    One run may contain the operation several ``times``; the result is the seconds of one.
    """

    def __init__(self, run: Callable[[], object], after: Callable[[], object] | None = None, times: int = 1) -> None:
        self._run = run
        self._after = after
        self._times = times

    def measure(self, budget_s: float) -> dict[str, float]:
        """The median seconds of one run after the warm-up; at least one run is timed."""
        self._repeat(budget_s * WARM_SHARE, MOST_BUDGETS * budget_s)
        return {"seconds": median(self._repeat(budget_s, MOST_BUDGETS * budget_s))}

    def _repeat(self, at_least_s: float, at_most_s: float) -> list[float]:
        """The seconds of each run: a few runs, or as many as fit into the time."""
        seconds: list[float] = []
        begin, spent = time.perf_counter(), 0.0
        while spent < at_least_s or (len(seconds) < FEW_RUNS and spent < at_most_s) or not seconds:
            seconds.append(self.once())
            spent = time.perf_counter() - begin
        return seconds

    def once(self) -> float:
        """The seconds of one run."""
        seconds = self.timed()
        if self._after is not None:
            self._after()
        return seconds / self._times

    def timed(self) -> float:
        run = self._run
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin


class EachAtOnce(Trial):
    """Runs that start at the same time, each in a thread; the result is their median."""

    def __init__(self, runs: Sequence[Callable[[], object]], after: Callable[[], object]) -> None:
        super().__init__(lambda: None, after)
        self._runs = runs

    def timed(self) -> float:
        """The median seconds of the runs, counted from their common start."""
        begun: list[float] = []
        gate = threading.Barrier(len(self._runs), action=lambda: begun.append(time.perf_counter()))

        def ended(run: Callable[[], object]) -> float:
            gate.wait()
            run()
            return time.perf_counter()

        with ThreadPoolExecutor(len(self._runs)) as pool:
            return median(list(pool.map(ended, self._runs))) - begun[0]


class Once(Trial):
    """A measurement that is made once: ``run`` returns its figures."""

    def __init__(self, run: Callable[[], dict[str, float]]) -> None:
        super().__init__(run)
        self._figures = run

    def measure(self, budget_s: float) -> dict[str, float]:
        return self._figures()


class Subject:
    """One side of a comparison: starts its server and has operations by name."""

    #: The arguments of ``python`` that start the server; empty for a subject without a server.
    server_arguments: Sequence[str] = ()

    def __init__(self, place: Place) -> None:
        self.place = place
        self.port = 0
        self._servers: list[Process] = []

    def start(self) -> None:
        """Start the server, if there is one. Raises ProcessFailed."""
        if self.server_arguments:
            self.port = self.start_server(self.server_arguments)

    def start_server(self, arguments: Sequence[str], core: int | None = None, own_network: bool = False) -> int:
        """Start one server and return the port of its ready line. Raises ProcessFailed.

        ``core``: its core, if not the servers' core; ``own_network``: in a network namespace of its own.
        """
        place = self.place
        log = place.folder / f"{type(self).__name__}-{len(self._servers)}.log"
        where = place.server_core if core is None else core
        server = Process(arguments, core=where, log=log, hide_numpy=place.hide_numpy, own_network=own_network)
        self._servers.append(server)
        return server.receive()["port"]

    def cpu_seconds(self) -> float:
        """The CPU time of the servers that run."""
        return sum(cpu_seconds(server.pid) for server in self._servers if server.running)

    def stop(self) -> None:
        for server in reversed(self._servers):
            server.stop()

    def trial(self, operation: str, **parameters: Any) -> AbstractContextManager[Trial]:
        """The context in which one operation is timed."""
        return getattr(self, operation)(**parameters)


class TwoAtOnce(Subject):
    """Runs each operation on two connections at the same time; a run ends when both have ended."""

    @contextmanager
    def trial(self, operation: str, **parameters: Any) -> Iterator[Trial]:
        alone = super().trial
        with ExitStack() as stack:
            trials = [stack.enter_context(alone(operation, **parameters)) for _ in range(2)]
            pool = stack.enter_context(ThreadPoolExecutor(len(trials)))
            yield Trial(lambda: list(pool.map(Trial.once, trials)))


def announce(port: int) -> None:
    """Print the ready line of a peer's server."""
    print(json.dumps({"ready": "peer", "port": port}), flush=True)


def take_children_along() -> None:
    """Let SIGTERM end the whole process group if this process leads it.

    For servers such as TVM's: their child processes do not end with their parent.
    """
    signal.signal(signal.SIGTERM, lambda *_: end_group())


def end_group() -> None:
    """End this process, and its process group if it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def serve_until_told() -> None:
    """Wait in a server's main thread until standard input ends or SIGTERM arrives; then end the process group."""
    take_children_along()
    sys.stdin.read()
    end_group()
