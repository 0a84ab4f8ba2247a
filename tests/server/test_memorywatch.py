"""Sessions with too much memory are told of, the dead are forgotten."""

import os
import subprocess
import sys

import pytest

from rpcsys.server.memorywatch import EVERY_S, MemoryWatch


def test_the_watch_tells_of_those_above_their_limit():
    said = []
    now = [100.0]
    watch = MemoryWatch(1 << 20, said.append, lambda: now[0])
    assert watch.due() is None
    watch.add(7, os.getpid())
    watch.add(8, 0)
    watch.look()
    assert said == []
    assert watch.due() == pytest.approx(100 + EVERY_S)
    now[0] = watch.due()
    watch.look()
    assert [event.child for event in said] == [7]


def test_the_watch_forgets_the_dead():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    now = [0.0]
    watch = MemoryWatch(1 << 20, print, lambda: now[0])
    watch.add(7, gone.pid)
    now[0] = 1.0
    watch.look()
    assert watch.due() is None


def test_without_a_limit_nobody_is_watched():
    watch = MemoryWatch(None, print, lambda: 0.0)
    watch.add(7, os.getpid())
    assert watch.due() is None
