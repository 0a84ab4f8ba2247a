"""Process groups in memory that a process shares with a copy of itself."""

import os
import signal
import subprocess
import sys

import pytest

from rpcsys.server.session.program_groups import ProgramGroups
from tests.device import until
from tests.live.processes import alive

JOBS = "set -m; trap '' HUP; sleep 600 & echo $!; wait"  # a job has a process group of its own


def test_a_copy_notes_what_is_killed_here():
    groups = ProgramGroups(2)
    with subprocess.Popen(["sh", "-c", JOBS], stdout=subprocess.PIPE, start_new_session=True) as program:
        job = int(program.stdout.readline())
        copy = os.fork()
        if not copy:
            groups.add(program.pid)
            os._exit(0)
        os.waitpid(copy, 0)
        groups.kill()
        assert program.wait(30) == -signal.SIGKILL
        until(lambda: not alive(job))


def test_what_is_removed_is_spared_and_leaves_room():
    groups = ProgramGroups(1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as program:
        groups.add(program.pid)
        with pytest.raises(ValueError, match="0"):
            groups.add(1)
        groups.remove(program.pid)
        groups.kill()
        assert program.poll() is None
        program.communicate(b"\n", timeout=30)
        assert program.returncode == 0
    groups.add(program.pid)
