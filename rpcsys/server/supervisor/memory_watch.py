"""The supervisor's scan of the sessions' memory and CPUs (see :mod:`rpcsys.server.sandbox.limits`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rpcsys.server.sandbox.limits import keep_on, members
from rpcsys.server.sandbox.memory_usage import MemoryUsage
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import Loop

EVERY_S = 0.2  # between two scans. One scan takes some 0.2 ms a process, and 0.05 ms a thread
SLICE_S = 0.005  # a long scan yields to the loop after this time, and resumes after the same time


@dataclass
class MemoryWatch:
    """Reports sessions above ``limit`` bytes (None: no limit), and those off their CPUs, whose affinity it restores.

    ``roots``: the uppermost processes of a child (:func:`rpcsys.server.sandbox.limits.members`), empty for a dead one;
    ``killed``: whether the kernel's OOM killer has ended a process of a child.
    """

    loop: Loop
    limit: int | None
    roots: Callable[[int], tuple[int, ...]]
    killed: Callable[[int], bool] = lambda child: False
    _children: dict[int, frozenset[int]] = field(default_factory=dict)
    _round: Iterator[None] | None = None

    def add(self, child: int, cpus: frozenset[int] = frozenset()) -> None:
        """Watch a child with a session on ``cpus`` (empty: all CPUs) until the child is dead."""
        if self.limit is None and not cpus:
            return
        if not self._children:
            self.loop.call_at(self.loop.now() + EVERY_S, self.scan)
        self._children[child] = cpus

    def scan(self) -> None:
        """Scan for one slice of time; schedule the next slice, or the next scan if children are left."""
        until = self.loop.now() + SLICE_S
        if self._round is None:
            self._round = self._steps()
        for _ in self._round:
            if self.loop.now() >= until:
                self.loop.call_at(self.loop.now() + SLICE_S, self.scan)
                return
        self._round = None
        self.loop.call_at(self.loop.now() + EVERY_S if self._children else None, self.scan)

    def _steps(self) -> Iterator[None]:
        """Scan all sessions, one process for each step."""
        for child, cpus in list(self._children.items()):
            roots = self.roots(child)
            if not roots:
                del self._children[child]
                continue
            if cpus and _strayed(roots, cpus):
                self.loop.post(ev.CpusLeft, child)
            if self.limit is not None:
                yield from self._measure(child, roots, self.limit)

    def _measure(self, child: int, roots: tuple[int, ...], limit: int) -> Iterator[None]:
        if self.killed(child):
            self.loop.post(ev.MemoryExceeded, child)
            return
        usage, pids = MemoryUsage(), members(roots)
        for one in pids:
            usage.scan(one)
            yield
        if usage.bound > limit:
            usage.scan_sockets()
        if usage.bound <= limit:
            return
        for one in pids:
            usage.measure(one)
            yield
        if usage.taken > limit and self.roots(child) == roots:
            self.loop.post(ev.MemoryExceeded, child)


def _strayed(roots: tuple[int, ...], cpus: frozenset[int]) -> bool:
    try:
        return keep_on(roots, cpus)
    except OSError:
        return True  # its CPUs were taken from the board
