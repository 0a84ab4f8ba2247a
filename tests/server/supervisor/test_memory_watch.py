"""Sessions with too much memory are told of, the dead are forgotten."""

import os
import subprocess

import pytest

from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.memory_watch import EVERY_S, SLICE_S, MemoryWatch


def test_the_watch_tells_of_those_above_their_limit():
    said = []
    now = [100.0]
    watch = MemoryWatch(1 << 20, {7: (os.getpid(),), 8: ()}.get, said.append, lambda: now[0])
    assert watch.due() is None
    watch.add(7)
    watch.add(8)
    watch.look()
    assert said == []
    assert watch.due() == pytest.approx(100 + EVERY_S)
    now[0] = watch.due()
    watch.look()
    assert [event.child for event in said] == [7]


def test_the_watch_forgets_the_dead():
    now = [0.0]
    watch = MemoryWatch(1 << 20, lambda child: (), print, lambda: now[0])
    watch.add(7)
    now[0] = 1.0
    watch.look()
    assert watch.due() is None


def test_without_a_limit_nobody_is_watched():
    watch = MemoryWatch(None, lambda child: (os.getpid(),), print, lambda: 0.0)
    watch.add(7)
    assert watch.due() is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU here")
def test_who_is_on_other_cpus_is_set_back_and_told_of():
    mine = frozenset(sorted(os.sched_getaffinity(0))[:1])
    now, said = [0.0], []
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            watch = MemoryWatch(None, lambda child: (process.pid,), said.append, lambda: now[0])
            watch.add(7, mine)
            for _ in range(3):
                now[0] = watch.due()
                watch.look()
            assert said == [ev.CpusLeft(EVERY_S, 7)]
            assert os.sched_getaffinity(process.pid) == mine
        finally:
            process.kill()


def test_a_long_look_lets_the_loop_work_in_between():
    now, said = [0.0], []

    def clock():
        now[0] += SLICE_S  # every step takes so long
        return now[0]

    watch = MemoryWatch(1 << 20, lambda child: (os.getpid(),), said.append, clock)
    for child in range(5):
        watch.add(child)
    looks = 0
    while len(said) < 5:
        now[0] = watch.due()
        watch.look()
        looks += 1
        assert looks < 50
    assert looks >= 5
    assert [event.child for event in said] == list(range(5))
