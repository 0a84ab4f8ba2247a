"""After each way to end a session, its processes have ended, its directory is removed, and its slot is free."""

from __future__ import annotations

import glob
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest

import rpcsys
from rpcsys.server.sandbox import mount_namespace
from tests.live.clients import Client
from tests.live.daemons import alive, wait_until
from tests.live.fault_lab import KEY, FaultLab, all_gone

CLEAN_S = 5.0
LIMIT_S = 2.0
TIMED_OUT = {"rpcsys": "SessionTimeout", "tvm": "RPCSessionTimeoutError"}


@dataclass
class Board:
    """A session with files and processes to clean up."""

    lab: FaultLab
    client: Client
    processes: list[int]
    files_before: set[str]

    def is_clean(self) -> None:
        all_gone(self.processes, CLEAN_S)
        wait_until(lambda: files(self.lab) == self.files_before, CLEAN_S, "no file is left")
        self.lab.free(2, CLEAN_S)
        self.lab.still_serves()


def files(lab: FaultLab) -> set[str]:
    """All paths in the daemons' folder, which also has their temporary files.

    The directories for future sessions are left out.
    """
    found = glob.glob(f"{lab.daemons.folder}/**", recursive=True, include_hidden=True)
    return {path for path in found if "/ready-" not in path}


def used_board(lab: FaultLab, limit_s: float = 0) -> Board:
    """A session with a file, a child and a daemon; both processes live."""
    before = files(lab)
    client = lab.client(limit_s).leased()
    started = [client.call(name)["value"] for name in ("spawn", "daemonise")]
    with open(os.path.join(client.workdir, "a file"), "w") as file:
        file.write("left behind")
    processes = [client.session_pid, *started]
    assert all(map(alive, processes))
    return Board(lab, client, processes, before)


@pytest.fixture
def lab(fault_lab: FaultLab) -> FaultLab:
    return fault_lab.start(slots=2)


ENDINGS: dict[str, Callable[[Client], object]] = {
    "closed": lambda client: client.close(),
    "client killed": lambda client: client.kill(),
    "session killed": lambda client: os.kill(client.session_pid, signal.SIGKILL),
    "session crashed": lambda client: client.call("crash"),
    "session left": lambda client: client.call("leave"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_ended_session_leaves_a_clean_board(lab: FaultLab, ending: str):
    board = used_board(lab)
    ENDINGS[ending](board.client)
    board.is_clean()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["closed", "client killed", "session crashed"])
def test_an_ended_session_without_fork_leaves_a_clean_board(fault_lab: FaultLab, ending: str):
    board = used_board(fault_lab.start(2, "ours", "--no-fork"))
    ENDINGS[ending](board.client)
    board.is_clean()


@pytest.mark.parametrize("doing", ["nap", "spin", "hold_gil"])
def test_a_session_over_its_limit_leaves_a_clean_board(lab: FaultLab, doing: str):
    board = used_board(lab, LIMIT_S)
    answer = board.client.call(doing, deadline_s=LIMIT_S + CLEAN_S)
    assert TIMED_OUT[lab.kind] in answer["error"]
    assert answer["message"].strip()
    board.is_clean()


def test_an_idle_session_over_its_limit_leaves_a_clean_board(lab: FaultLab):
    board = used_board(lab, LIMIT_S)
    all_gone(board.processes, LIMIT_S + CLEAN_S)
    answer = board.client.call("pid", deadline_s=CLEAN_S)
    assert TIMED_OUT[lab.kind] in answer["error"]
    board.is_clean()


def test_a_stopped_server_leaves_nothing(lab: FaultLab):
    board = used_board(lab)
    tree = lab.server.tree()
    assert lab.server.terminate(deadline_s=40) == 0
    all_gone([*board.processes, *tree], CLEAN_S)
    assert not os.path.exists(os.path.dirname(board.client.workdir))
    assert "error" in board.client.call("pid")


@pytest.mark.parametrize("kind", ["rpcsys"])
def test_the_history_has_what_was_cleaned_up(fault_lab: FaultLab, tmp_path):
    lab = fault_lab
    lab.tracker = lab.daemons.tracker("--state-dir", str(tmp_path / "state"))
    flags = (*lab.server_flags(1), "--import", "tests.live.resource_abuse")
    lab.server = lab.daemons.server(KEY, *flags, tracker=lab.tracker, offers=1)
    client = lab.client().leased()
    client.call("daemonise")
    path = client.call("write_tmp")["value"]
    client.close()
    with rpcsys.connect_tracker(lab.tracker.where) as tracker:
        (lease,) = wait_until(tracker.history, 20, "the lease is over")
    assert lease["outcome"] == "closed"
    assert lease["cleaned"]["processes"][0].startswith("python")
    if not mount_namespace.probe("/tmp/rpcsys-probe"):
        assert path in lease["cleaned"]["removed"]
    assert "had to be killed: python" in lab.server.stderr()


@pytest.mark.parametrize("kind", ["rpcsys"])
def test_a_server_that_stops_reports_the_leases_that_end(fault_lab: FaultLab, tmp_path):
    lab = fault_lab
    lab.tracker = lab.daemons.tracker("--state-dir", str(tmp_path / "state"))
    flags = (*lab.server_flags(2), "--grace", "20")
    lab.server = lab.daemons.server(KEY, *flags, tracker=lab.tracker, offers=2)
    first, second = lab.client().leased(), lab.client().leased()
    lab.server.process.terminate()
    waiting = lab.client()
    lab.pending(1)
    first.close()
    with rpcsys.connect_tracker(lab.tracker.where) as tracker:
        wait_until(lambda: [lease["outcome"] for lease in tracker.history()] == ["closed"], 20, "one is over")
        assert lab.server.running()
        assert second.call("pid")["value"] == second.session_pid
        second.close()
        assert lab.server.process.wait(20) == 0
        wait_until(lambda: len(tracker.history()) == 2, 20, "both are over")
        assert {lease["outcome"] for lease in tracker.history()} == {"closed"}
    assert waiting.silent()


def test_a_session_sees_nothing_of_earlier_sessions(lab: FaultLab):
    boards = [used_board(lab), used_board(lab)]
    homes = {board.client.workdir for board in boards}
    assert len(homes) == 2
    for board in boards:
        board.client.close()
    lab.free(2)
    again = lab.client().leased()
    assert again.workdir not in homes
    assert os.listdir(again.workdir) in ([], ["session_faults.so"])  # the library that a TVM client has just uploaded
