"""What a subject is: somebody who can be asked to do an operation, and is timed doing it.

A subject's operations are context managers that yield a :class:`Trial`: what comes before the yield
(a fresh connection, an array) and after it is not timed. So every round has a connection of its own,
as the throughput of one connection may be half or twice that of the next.
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
from benchmarks.processes import Process

WARM_SHARE = 0.2  # of a round's time, spent before anything counts
FEW_RUNS = 3  # the first runs of a connection meet fresh memory: that many before, and that many timed
PATIENCE = 4  # times the budget, after which fewer runs have to do


@dataclass(frozen=True)
class Place:
    """Where a subject's server runs, and where its log goes."""

    server_core: int
    folder: Path
    hide_numpy: bool = False


class Trial:
    """Something to be timed again and again. ``after`` follows each time, untimed.

    A run may do its thing several ``times``; its seconds are then those of one of them.
    """

    def __init__(self, run: Callable[[], object], after: Callable[[], object] | None = None, times: int = 1) -> None:
        self._run = run
        self._after = after
        self._times = times

    def measure(self, budget_s: float) -> dict[str, float]:
        """The median seconds of one run, warmed up; at least one is timed, however long it takes."""
        self._repeat(budget_s * WARM_SHARE, PATIENCE * budget_s)
        return {"seconds": median(self._repeat(budget_s, PATIENCE * budget_s))}

    def _repeat(self, at_least_s: float, at_most_s: float) -> list[float]:
        """The seconds of each of a few runs, or of as many as fit."""
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
    """Runs that begin at the same time, each in a thread; their median counts."""

    def __init__(self, runs: Sequence[Callable[[], object]], after: Callable[[], object]) -> None:
        super().__init__(lambda: None, after)
        self._runs = runs

    def timed(self) -> float:
        """The median seconds of the runs, all counted from the moment that lets them begin."""
        begun: list[float] = []
        gate = threading.Barrier(len(self._runs), action=lambda: begun.append(time.perf_counter()))

        def ended(run: Callable[[], object]) -> float:
            gate.wait()
            run()
            return time.perf_counter()

        with ThreadPoolExecutor(len(self._runs)) as pool:
            return median(list(pool.map(ended, self._runs))) - begun[0]


class Subject:
    """One side of a comparison: starts its server, and offers operations by name."""

    #: What follows ``python`` to start the server; nothing for a subject that needs none.
    server_arguments: Sequence[str] = ()

    def __init__(self, place: Place) -> None:
        self.place = place
        self.port = 0
        self._servers: list[Process] = []

    def start(self) -> None:
        """Start what there is to start. Raises ProcessFailed."""
        if self.server_arguments:
            self.port = self.start_server(self.server_arguments)

    def start_server(self, arguments: Sequence[str], core: int | None = None) -> int:
        """Start one server, and return the port of its ready line. Raises ProcessFailed.

        ``core``: where it runs, instead of where servers do.
        """
        place = self.place
        log = place.folder / f"{type(self).__name__}-{len(self._servers)}.log"
        where = place.server_core if core is None else core
        server = Process(arguments, core=where, log=log, hide_numpy=place.hide_numpy)
        self._servers.append(server)
        return server.receive()["port"]

    def stop(self) -> None:
        for server in reversed(self._servers):
            server.stop()

    def trial(self, operation: str, **parameters: Any) -> AbstractContextManager[Trial]:
        """The context in which one operation can be timed."""
        return getattr(self, operation)(**parameters)


class TwoAtOnce(Subject):
    """Does each operation on two connections at the same time; a run ends when both have done theirs."""

    @contextmanager
    def trial(self, operation: str, **parameters: Any) -> Iterator[Trial]:
        alone = super().trial
        with ExitStack() as stack:
            trials = [stack.enter_context(alone(operation, **parameters)) for _ in range(2)]
            pool = stack.enter_context(ThreadPoolExecutor(len(trials)))
            yield Trial(lambda: list(pool.map(Trial.once, trials)))


def announce(port: int) -> None:
    """A peer's server says that it serves, and at which port."""
    print(json.dumps({"ready": "peer", "port": port}), flush=True)


def take_children_along() -> None:
    """Have SIGTERM end all that this process has started: its whole process group, if it leads one.

    For servers that start processes which do not notice that they are alone, as TVM's do.
    """
    signal.signal(signal.SIGTERM, lambda *_: end_group())


def end_group() -> None:
    """End this process, and with it those of its group if it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def serve_until_told() -> None:
    """Keep a server's main thread busy until standard input ends or SIGTERM comes; then all it started ends."""
    take_children_along()
    sys.stdin.read()
    end_group()
