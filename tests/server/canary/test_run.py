"""The time of a canary, and what of it is others' doing."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from rpcsys.server.canary import run
from rpcsys.server.canary.neighbours import Spent
from rpcsys.server.canary.setting import BUILTIN
from rpcsys.server.sandbox import messages, processes
from rpcsys.server.sandbox.messages import CANARY, Job


def test_a_median_of_the_runs_and_each_ones_part_of_what_stalled_them():
    where = Spent(wall=1.0, cpu=0.9, others=0.04, throttled=0.05, busy_elsewhere=0.1)
    timed = run.timed_of([0.01, 0.01, 0.01, 0.9], where)
    assert timed.seconds == pytest.approx(0.01 + 0.06 / 4)
    assert timed.throttled == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("where", "disturbed"),
    [
        (Spent(1.0, 1.0, 0.0, 0.0, 0.0), False),
        (Spent(1.0, 0.97, 0.03, 0.0, 0.2), False),
        (Spent(1.0, 0.9, 0.1, 0.0, 0.1), True),
        (Spent(1.0, 1.0, 0.0, 0.0, 0.3), True),
        (Spent(1.0, 0.6, 0.0, 0.4, 0.0), False),  # a quota is the board's own slowness
        (Spent(1.0, 0.01, 0.2, 0.0, 2.0), False),  # it waits for a device, which the neighbours do not use
        (Spent(0.0, 0.0, 0.0, 0.0, 0.0), False),
    ],
)
def test_a_run_is_disturbed_by_others_alone(where, disturbed):
    assert run.Timed(0.01, where).disturbed == disturbed


def test_a_long_work_runs_three_times_and_a_short_one_for_a_while():
    calls = []
    run.measure(lambda: calls.append(time.sleep(0.05)), warm_s=0.0, timed_s=0.01)
    assert len(calls) == 1 + run.LEAST
    calls.clear()
    timed = run.measure(lambda: calls.append(time.sleep(0.001)), warm_s=0.02, timed_s=0.1)
    assert len(calls) > run.LEAST
    assert timed.spent.wall >= 0.1
    assert timed.seconds >= 0.001


def test_the_process_reports_one_run():
    ours, theirs = messages.pair()
    affinity = os.sched_getaffinity(0)

    def child() -> None:
        run.serve(theirs, Job(CANARY, b"", "/", "k", "", options={"canary": BUILTIN, "cpus": []}))

    assert processes.try_in_copy(child) == ""
    told = messages.parse(messages.receive(ours)[0], messages.OF_CANARY)
    assert told["canary"].startswith("builtin/1")
    assert told["seconds"] > 0
    assert os.sched_getaffinity(0) == affinity
    for end in (ours, theirs):
        end.close()


def test_a_canary_that_cannot_run_says_why():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def child() -> None:
        run.serve(theirs, Job(CANARY, b"", "/", "k", "", options={"canary": "/no/such.onnx", "cpus": [0]}))

    assert processes.try_in_copy(child) == ""
    assert "such.onnx" in messages.parse(messages.receive(ours)[0], messages.OF_CANARY)["unfit"]
    for end in (ours, theirs):
        end.close()


@pytest.fixture
def limited():
    """A cgroup with a twentieth of a CPU: more than that is there even where many processes share one."""
    for parent, name, text in (
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "5000"),
        ("/sys/fs/cgroup", "cpu.max", "5000 100000"),
    ):
        folder = Path(parent, f"rpcsys-canary-{os.getpid()}")
        try:
            folder.mkdir()
            (folder / name).write_text(text)
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            continue
        yield folder
        folder.rmdir()
        return
    pytest.skip("no cgroup with a CPU quota can be made here")


def test_a_quota_is_told_from_neighbours(limited):
    ours, theirs = messages.pair()
    work, name = run.workload.builtin()

    def child() -> None:
        (limited / "cgroup.procs").write_text("0")
        messages.send_json(theirs, **run.report(name, run.measure(work, 0.05)))

    assert processes.try_in_copy(child) == ""
    told = messages.parse(messages.receive(ours)[0], messages.OF_CANARY)
    assert told["throttled"] > 0.1
    assert told["seconds"] > 1.2 * run.measure(work).seconds
    for end in (ours, theirs):
        end.close()
