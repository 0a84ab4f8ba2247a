"""Removal of IPC objects that sessions leave, where sessions have no namespaces of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rpcsys
from rpcsys.server.sandbox.ipc_cleanup import found

LEAVE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
print(libc.shmget(0, 4096, 0o600), libc.semget(0, 1, 0o600), libc.msgget(0, 0o600))
open("/dev/shm/" + sys.argv[1], "w").close()
"""


@pytest.fixture
def private():
    """Skip the test where its code cannot run in namespaces of its own."""
    from rpcsys.server.sandbox import mount_namespace

    why = mount_namespace.probe("/tmp/rpcsys-probe")
    if why:
        pytest.skip(f"no namespaces here: {why}")


def inside(code, *arguments):
    """Run ``code`` in namespaces of its own, which stand for a whole board; return its output."""
    # A checkout below /tmp would be hidden otherwise.
    needed = [str(Path(rpcsys.__file__).parent.parent), sys.prefix, sys.base_prefix]
    whole = (
        "from rpcsys.server.sandbox import mount_namespace, pid_namespace\n"
        "left = pid_namespace.mounts(); pid_namespace.leave(pid_namespace.MOUNTS)\n"
        f"namespace = mount_namespace.MountNamespace(left, '/tmp/rpcsys-probe', {needed!r})\n{code}"
    )
    done = subprocess.run(
        [sys.executable, "-c", whole, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BOARD = """
import subprocess, sys, os, ctypes
from rpcsys.server.sandbox.ipc_cleanup import IpcCleanup, found
LEAVE = sys.argv[1]
leave = lambda name: subprocess.run([sys.executable, "-c", LEAVE, name], check=True, stdout=subprocess.DEVNULL)
leave("before")
cleanup = IpcCleanup()
cleanup.note_idle()
"""


@pytest.mark.usefixtures("private")
def test_new_objects_are_removed_and_earlier_ones_stay():
    code = (
        BOARD
        + """
leave("after")
first, second = cleanup.remove(True), cleanup.remove(True)
print(len(found((os.geteuid(),))), second)
print(*(name.rpartition(" ")[0] or name for name in first), sep="\\n")
"""
    )
    counts, *names = inside(code, LEAVE).splitlines()
    assert counts == "4 ()"
    assert sorted(names) == ["/dev/shm/after", "System V queue", "System V semaphores", "System V shared memory"]


@pytest.mark.usefixtures("private")
def test_an_object_of_another_session_stays_until_the_board_is_idle():
    code = (
        BOARD
        + """
leave("after")
libc = ctypes.CDLL(None)
mine = libc.shmget(0, 4096, 0o600)
busy = cleanup.remove(False)
print(*(name.rpartition(" ")[0] for name in busy))
print(any(one.number == mine and one.kind == "shm" for one in found((os.geteuid(),))))
"""
    )
    assert inside(code, LEAVE).splitlines() == ["System V shared memory", "True"]


def test_a_user_without_objects_has_none():
    assert found((4_000_000,)) == []


OF_USER = """
import ctypes, os, sys
from rpcsys.server.sandbox import ipc_cleanup, session_user
uid = 1879048000 + os.getpid() % 190
if not os.fork():
    session_user.become(session_user.User(uid, uid), "/")
    ctypes.CDLL(None).semget(0, 1, 0o600)
    for place in ("/tmp", "/dev/shm", "/var/tmp"):
        os.makedirs(f"{place}/of-{uid}/inner")
        os.symlink("/etc", f"{place}/link-of-{uid}")
    os._exit(0)
os.wait()
print(sorted(ipc_cleanup.files_of(uid, shared=False)))
removed = ipc_cleanup.remove_all_of(uid, shared=True)
print(len(removed), any("System V semaphores" in name for name in removed), f"/dev/shm/of-{uid}" in removed)
left = [*ipc_cleanup.remove_all_of(uid, shared=True), *ipc_cleanup.files_of(uid, shared=True)]
print(left, os.path.exists("/etc"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_all_that_a_user_has_is_removed():
    done = subprocess.run([sys.executable, "-c", OF_USER], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n7 True True\n[] True\n", done.stderr
