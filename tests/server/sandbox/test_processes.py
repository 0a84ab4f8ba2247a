"""Descendants are found and killed, also daemonised ones and orphans that fork and exit fast."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rpcsys.server.sandbox import processes

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


def test_a_process_that_has_ended_has_no_children_and_no_name():
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


ORPHANS_IMPORTS = "import ctypes, json, os, signal, sys, time\n"

KILL_ORPHANS = """
from rpcsys.server.sandbox import processes
processes.become_subreaper()
spared = os.fork() or time.sleep(120)
main = os.fork()
if main == 0:
    attack()
    os._exit(0)
if wait:
    os.waitpid(main, 0)
orphans = processes.Orphans()
until = time.monotonic() + 60
while not orphans.burst(lambda dead: {spared}) and time.monotonic() < until:
    time.sleep(0.005)
left = processes.children(os.getpid())
print(json.dumps([left == [spared], orphans.names, orphans.stuck]))
os.kill(spared, 9)
"""

ATTACKS = {
    "daemons": """
def attack():
    for _ in range(3):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            os.fork()
            time.sleep(120)
""",
    "fork and exit": """
c = ctypes.PyDLL(None)
def attack():
    while not c.fork():  # the copy goes on, and is an orphan
        c.setsid()
    c._exit(0)
""",
    "three of them": """
c = ctypes.PyDLL(None)
def attack():
    c.fork(), c.fork()
    while not c.fork():
        c.setsid()
    c._exit(0)
""",
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("wait", [True, False])
def test_all_orphans_are_killed_but_the_spared_ones(attack, wait):
    done = subprocess.run(
        [sys.executable, "-c", f"{ORPHANS_IMPORTS}{ATTACKS[attack]}wait = {wait}\n{KILL_ORPHANS}"],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    clean, names, stuck = json.loads(done.stdout)
    assert clean
    assert names
    assert all(name.startswith("python") for name in names)
    assert stuck == {}


def refused():
    raise PermissionError(1, "not here")


@pytest.mark.parametrize(
    ("act", "why"),
    [(lambda: None, ""), (refused, "not here"), (lambda: os.kill(os.getpid(), 9), "for a reason unknown")],
)
def test_a_trial_in_a_copy_changes_nothing_here(act, why):
    before = processes.children(os.getpid())
    assert processes.try_in_copy(act) == why
    assert processes.children(os.getpid()) == before


FORKED = """
import os, signal, sys, threading
from rpcsys.server.sandbox import processes

reading, writing = os.pipe()
os.register_at_fork(after_in_child=lambda: os.write(writing, b"repaired "))
pid = processes.fork()
if not pid:
    processes.finish_fork()
    thread = threading.Thread(target=lambda: os.write(writing, b"%d" % (threading.active_count() - 1)))
    thread.start()
    thread.join()
    processes.set_name("forked")
    os.write(writing, b" " + processes.name_of(os.getpid()).encode())
    os._exit(3)
status = os.waitpid(pid, 0)[1] >> 8
print(os.read(reading, 100).decode(), status, processes.number() == os.getpid())
"""


def test_a_fork_by_c_runs_like_one_by_python():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["repaired", "1", "forked", "3", "True"]


def test_a_signal_with_a_handler_gets_its_default_effect():
    code = """
import os, signal
from rpcsys.server.sandbox import processes

signal.signal(signal.SIGTERM, lambda *_: print("handled"))
processes.default_signal(signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_a_process_that_is_not_dumpable_is_closed_to_its_user():
    code = """
import os, sys
from rpcsys.server.sandbox import processes
uid = 65534 if os.geteuid() == 0 else os.geteuid()
os.setuid(uid)
processes.set_dumpable(sys.argv[1] == "open")
parent = os.getpid()
if not os.fork():
    processes.set_dumpable(True)
    try:
        print(len(open(f"/proc/{parent}/environ", "rb").read()) > 0, flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
    os._exit(0)
os.wait()
"""
    for how, answer in (("open", "True"), ("closed", "Permission denied")):
        done = subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == answer, done.stderr


def test_what_was_printed_is_written_out_at_the_end():
    code = """
import atexit
from rpcsys.server.sandbox import processes
atexit.register(print, "late")
print("said", end="")
processes.exit_at_once(3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said", "")
