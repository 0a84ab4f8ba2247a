"""Sessions with too much memory are told of, the dead are forgotten."""

import os
import subprocess

import pytest

from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.memory_watch import EVERY_S, SLICE_S, MemoryWatch


class Scene:
    """A watch with a clock: each of its children has this process, unless ``roots`` says otherwise."""

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

    def told(self):
        return [event.child for event in self.loop.events]


def test_the_watch_reports_those_above_their_limit():
    scene = Scene(1 << 20, {7: (os.getpid(),), 8: ()}.get)
    assert scene.due is None
    scene.watch.add(7)
    scene.watch.add(8)
    scene.loop.run_once(0.0)
    assert scene.told() == []
    assert scene.due == pytest.approx(100 + EVERY_S)
    scene.scan()
    assert scene.told() == [7]


def test_the_watch_forgets_the_dead():
    scene = Scene(1 << 20, lambda child: ())
    scene.watch.add(7)
    scene.scan()
    assert scene.due is None


def test_without_a_limit_nobody_is_watched():
    scene = Scene(None)
    scene.watch.add(7)
    assert scene.due is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU here")
def test_who_is_on_other_cpus_is_set_back_and_reported():
    mine = frozenset(sorted(os.sched_getaffinity(0))[:1])
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            scene = Scene(None, lambda child: (process.pid,))
            scene.watch.add(7, mine)
            for _ in range(3):
                scene.scan()
            assert list(scene.loop.events) == [ev.CpusLeft(100.0 + EVERY_S, 7)]
            assert os.sched_getaffinity(process.pid) == mine
        finally:
            process.kill()


def test_a_long_look_lets_the_loop_work_in_between():
    scene = Scene(1 << 20, step_s=SLICE_S)  # every step takes so long
    for child in range(5):
        scene.watch.add(child)
    scans = 0
    while len(scene.told()) < 5:
        scene.scan()
        scans += 1
        assert scans < 50
    assert scans >= 5
    assert scene.told() == list(range(5))
