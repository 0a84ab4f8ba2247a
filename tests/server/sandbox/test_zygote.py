"""A zygote makes children, reports their ends when no descendant is left, and leaves nothing behind."""

import os
import time

import pytest

from rpcsys.server.sandbox import mount_namespace, processes
from rpcsys.server.sandbox.messages import ChildKind

WHY_NOT = mount_namespace.probe("/tmp/rpcsys-probe")
DAEMON = """
import os, time
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.waitpid(middle, 0)
"""


@pytest.fixture(params=[True, False], ids=["isolated", "shared"])
def isolate(request):
    if request.param and WHY_NOT:
        pytest.skip(f"no namespaces here: {WHY_NOT}")
    return request.param


def gone(pid):
    end = time.monotonic() + 30
    while processes.alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not processes.alive(pid)


def test_a_child_is_made_waits_and_is_killed(start, isolate):
    zygote = start(isolate=isolate)
    ready = zygote.next_message("ready", "failed")
    assert ready == {"ready": True, "shared": "" if isolate else "--no-isolation"}
    born = zygote.spawn(7)
    assert zygote.child_message(7, "ready", "failed") == {"ready": True}
    assert born["born"] == 7
    assert processes.alive(born["pid"])
    if born["init"]:
        assert processes.parent(born["pid"]) == processes.parent(born["init"]) == zygote.pid
    zygote.control.send(b'{"kill": 7}')
    dead = zygote.next_message("dead")
    assert (dead["dead"], dead["status"], dead["starved"], dead["cleaned"]) == (7, -9, False, [])
    assert gone(born["pid"])
    assert not born["init"] or gone(born["init"])
    assert zygote.leave() == 0


def test_descendants_of_a_child_die_with_it_and_are_named(start, isolate, tmp_path, monkeypatch):
    """Without a fork the child itself imports the code ahead of its job."""
    (tmp_path / "strays.py").write_text(DAEMON)
    monkeypatch.syspath_prepend(tmp_path)
    keep = mount_namespace.hidden([os.getcwd(), str(tmp_path)])
    zygote = start(isolate=isolate, fork=False, imports=["strays"], keep=keep)
    zygote.next_message("ready")
    born = zygote.spawn(3)
    assert zygote.child_message(3, "importing") == {"importing": "--import strays"}
    assert zygote.child_message(3, "ready", "failed") == {"ready": True}
    below = processes.descendants(born["init"] or born["pid"])
    zygote.control.send(b'{"kill": 3}')
    dead = zygote.next_message("dead")
    assert len(dead["cleaned"]) == 1
    assert dead["cleaned"][0].startswith("python")
    assert all(map(gone, below))


NO_FORK = """
import errno
from rpcsys.server.sandbox import processes
fork = processes.fork

def refused():
    processes.fork = fork
    raise OSError(errno.EAGAIN, "no more processes")

processes.fork = refused
"""


def test_nothing_is_left_of_a_child_that_cannot_be_made(start, isolate, tmp_path, monkeypatch):
    (tmp_path / "no_fork.py").write_text(NO_FORK)
    monkeypatch.syspath_prepend(tmp_path)
    zygote = start(isolate=isolate, imports=["no_fork"], keep=mount_namespace.hidden([os.getcwd(), str(tmp_path)]))
    zygote.next_message("ready")
    before = processes.descendants(zygote.pid)
    dead = zygote.spawn(1)
    assert (dead["dead"], dead["status"]) == (1, 1)
    assert processes.descendants(zygote.pid) == before
    zygote.spawn(2)
    assert zygote.child_message(2, "ready") == {"ready": True}


def test_shared_memory_of_a_killed_child_is_named(start):
    if WHY_NOT:
        pytest.skip(f"no namespaces here: {WHY_NOT}")
    zygote = start()
    zygote.next_message("ready")
    born = zygote.spawn(1)
    zygote.child_message(1, "ready")
    with open(f"/proc/{born['pid']}/root/dev/shm/stray-of-a-test", "w"):
        pass
    zygote.control.send(b'{"kill": 1}')
    assert zygote.next_message("dead")["removed"] == ["/dev/shm/stray-of-a-test"]
    assert not os.path.exists("/dev/shm/stray-of-a-test")


def test_a_child_is_made_even_without_a_cgroup(start, isolate):
    zygote = start(isolate=isolate, cgroups={"memory": "/no/such/folder"})
    zygote.next_message("ready")
    zygote.spawn(1)
    assert zygote.child_message(1, "ready") == {"ready": True}  # polling holds its limits


def test_all_processes_end_when_the_supervisor_is_gone(start, isolate):
    zygote = start(isolate=isolate)
    zygote.next_message("ready")
    born = [zygote.spawn(1), zygote.spawn(2, ChildKind.HOST)]
    for child in (1, 2):
        zygote.child_message(child, "ready")
    assert zygote.leave() == 0
    assert all(gone(one["pid"]) and (not one["init"] or gone(one["init"])) for one in born)
    assert not os.path.exists(zygote.folder)


def test_an_import_that_fails_names_its_flag(start):
    zygote = start(isolate=False, imports=["no_such_module_of_a_test"])
    message = zygote.next_message("failed", "ready")
    assert message["failed"].startswith("--import no_such_module_of_a_test: ModuleNotFoundError: ")


def test_read_only_without_mounts_is_refused(start):
    zygote = start(isolate=False, read_only=True)
    message = zygote.next_message("failed", "ready")
    assert message == {"failed": "--read-only: sessions get no mounts of their own here (--no-isolation)"}
