"""The watch reports sessions with too much memory or other CPUs, and stops watching dead children."""

import os
import subprocess

import pytest

from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.memory_watch import EVERY_S, SLICE_S, MemoryWatch


class WatchHarness:
    """A watch with a clock. Each of its children is this process, unless ``roots`` is given."""

    def __init__(self, limit, roots=lambda child: (os.getpid(),), step_s=0.0):
        self.now, self.step_s = 100.0, step_s
        self.loop = Loop(self.clock)
        self.watch = MemoryWatch(self.loop, limit, roots)

    def clock(self):
        self.now += self.step_s
        return self.now

    @property
    def due(self):
        return self.loop.timers.get(self.watch.scan)

    def scan(self):
        self.now = self.due
        self.loop.run_once(0.0)

    def reported(self):
        return [event.child for event in self.loop.events]


def test_a_session_above_its_limit_is_reported():
    harness = WatchHarness(1 << 20, {7: (os.getpid(),), 8: ()}.get)
    assert harness.due is None
    harness.watch.add(7)
    harness.watch.add(8)
    harness.loop.run_once(0.0)
    assert harness.reported() == []
    assert harness.due == pytest.approx(100 + EVERY_S)
    harness.scan()
    assert harness.reported() == [7]


def test_dead_children_are_not_watched():
    harness = WatchHarness(1 << 20, lambda child: ())
    harness.watch.add(7)
    harness.scan()
    assert harness.due is None


def test_without_a_limit_no_child_is_watched():
    harness = WatchHarness(None)
    harness.watch.add(7)
    assert harness.due is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU here")
def test_a_session_on_other_cpus_is_set_back_and_reported():
    mine = frozenset(sorted(os.sched_getaffinity(0))[:1])
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            harness = WatchHarness(None, lambda child: (process.pid,))
            harness.watch.add(7, mine)
            for _ in range(3):
                harness.scan()
            assert list(harness.loop.events) == [ev.CpusLeft(100.0 + EVERY_S, 7)]
            assert os.sched_getaffinity(process.pid) == mine
        finally:
            process.kill()


def test_a_long_scan_yields_to_the_loop():
    with subprocess.Popen(["sleep", "100"]) as process:  # alone: this one has the children of other tests
        try:
            harness = WatchHarness(1, lambda child: (process.pid,), step_s=SLICE_S)  # every step takes a whole slice
            for child in range(5):
                harness.watch.add(child)
            scans = 0
            while len(harness.reported()) < 5:
                harness.scan()
                scans += 1
                assert scans < 50
            assert scans >= 5
            assert harness.reported() == list(range(5))
        finally:
            process.kill()
