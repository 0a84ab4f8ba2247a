"""Descendants are found, also those that daemonised, and are ended."""

import os
import subprocess
import sys
import time

import pytest

from rpcsys.server import processes

TREE = """
import os, sys, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        time.sleep(60)
print("made", flush=True)
time.sleep(60)
"""

SUBREAPER = """
import os, sys, time
from rpcsys.server import processes
processes.become_subreaper()
first = os.fork()
if first == 0:
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
os.waitpid(first, 0)
orphans = processes.children(os.getpid())
names = {}
while processes.children(os.getpid()):
    names.update(processes.kill_trees(processes.children(os.getpid())))
    processes.reap()
print(len(orphans), len(names))
"""


@pytest.fixture
def tree():
    process = subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    yield process
    for pid in processes.descendants(process.pid):
        processes.kill(pid)
    process.kill()
    process.wait()
    process.stdout.close()


def below(pid, count):
    end = time.monotonic() + 20
    while len(processes.descendants(pid)) != count:
        assert time.monotonic() < end
        time.sleep(0.01)
    return processes.descendants(pid)


def test_descendants_come_after_their_parents(tree):
    found = below(tree.pid, 4)
    assert found[:2] == processes.children(tree.pid)
    assert all(processes.alive(pid) for pid in found)


def test_a_search_finds_the_same_children(tree):
    below(tree.pid, 4)
    assert sorted(processes._children_by_search(tree.pid)) == sorted(processes.children(tree.pid))


def test_the_whole_tree_is_killed(tree):
    found = below(tree.pid, 4)
    names = processes.kill_trees([tree.pid])
    assert len(names) == 5
    assert all(name.startswith("python") for name in names.values())
    tree.wait(10)
    end = time.monotonic() + 10
    while any(processes.alive(pid) for pid in found):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_orphans_come_to_the_subreaper():
    done = subprocess.run(
        [sys.executable, "-c", SUBREAPER], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["1", "1"]


def test_nobody():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert processes.children(gone.pid) == []
    assert processes.name_of(gone.pid) == ""
    assert not processes.alive(gone.pid)


def test_a_process_dies_with_its_parent():
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        middle = os.getpid()
        if os.fork() == 0:
            processes.die_with_parent(middle)
            os.write(writer, b"%d" % os.getpid())
            time.sleep(60)
        time.sleep(60)
    child = int(os.read(reader, 20))
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    end = time.monotonic() + 10
    while processes.alive(child):
        assert time.monotonic() < end
        time.sleep(0.01)
    os.close(reader)
    os.close(writer)
