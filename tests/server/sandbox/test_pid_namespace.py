"""PID namespaces, in a process with one thread, like the zygote; as root and as another user."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from rpcsys.server.sandbox import mount_namespace
from tests.live.daemons import ROOT

WHY_NOT = mount_namespace.probe("/tmp/rpcsys-probe", own_pids=True)

PROGRAM = """
import json, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from rpcsys.server.sandbox import limits, pid_namespace, processes
from rpcsys.server.sandbox.processes import fork

processes.become_subreaper()
maker = pid_namespace.InitMaker(lambda: None)

def start(command):
    init = maker.make_init()
    def make(other):
        pid = fork()
        if not pid:
            if other >= 0:
                os.close(other)
            os.execvp("sh", ["sh", "-c", command])
        return pid
    return init, maker.start_below(init, make)

def numbers(pid):
    return [line.split() for line in open(f"/proc/{pid}/status") if line.startswith("NSpid")][0][1:]

def until(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())

def ended(*pids):
    gone = {}
    def look():
        gone.update((dead.pid, dead.status) for dead in processes.reap())
        return set(pids) <= gone.keys()
    assert until(look), (pids, gone)
    return [gone[pid] for pid in pids]
"""


def run(program: str, user: str) -> object:
    if user == "nobody" and (os.geteuid() != 0 or not shutil.which("setpriv")):
        pytest.skip("only root can become another user")
    become = [] if user == "root" else ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    done = subprocess.run(
        [*become, sys.executable, "-c", PROGRAM + program, str(ROOT)],
        capture_output=True, text=True, timeout=60, cwd="/",
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no PID namespaces here: {WHY_NOT}"),
    pytest.mark.parametrize("user", ["root", "nobody"]),
]


def test_all_processes_of_a_namespace_end_with_its_init(user):
    result = run(
        """
init, pid = start("sleep 60 & (sleep 60 &); exec sleep 60")
until(lambda: processes.names(limits.members([pid, init])) == ("sleep",) * 3)
members = limits.members([pid, init])
parents = [processes.parent(one) for one in (init, pid)]
facts = [members[0] == pid, numbers(init)[1:], numbers(pid)[1:], len(members), parents == [os.getpid()] * 2]
processes.kill(init)
print(json.dumps([facts, ended(pid, init), [one for one in members if processes.alive(one)]]))
""",
        user,
    )
    assert result == [[True, ["1"], ["2"], 3, True], [-9, -9], []]


def test_a_process_ends_before_its_init_and_has_its_own_status(user):
    result = run(
        """
init, pid = start("kill -ABRT $$")
status = ended(pid)
print(json.dumps([status, processes.alive(init)]))
""",
        user,
    )
    assert result == [[-6], True]


def test_inits_outlive_their_maker_and_end_with_its_parent(user):
    result = run(
        """
first, pid = start("exec sleep 60")
processes.kill(maker.pid)
ended(maker.pid)
second, other = start("exec sleep 60")
lived = [processes.alive(one) for one in (first, pid, second, other)]
maker.close_own()
print(json.dumps([lived, ended(pid, other, first, second)]))
""",
        user,
    )
    assert result == [[True] * 4, [-9, -9, 255, 255]]


def test_starting_a_process_in_an_ended_namespace_is_an_error(user):
    result = run(
        """
init = maker.make_init()
processes.kill(init)
ended(init)
try:
    maker.start_below(init, lambda other: fork() or os._exit(3))
    result = ""
except OSError as error:
    result = type(error).__name__
_, pid = start("exit 4")
print(json.dumps([result, numbers(os.getpid()), ended(pid)]))
""",
        user,
    )
    assert result[0] in ("OSError", "FileNotFoundError")
    assert (len(result[1]), result[2]) == (1, [4])
