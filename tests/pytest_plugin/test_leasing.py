"""Each test runs pytest as a user does."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

import rpcsys
from rpcsys.pytest_plugin.leasing import NO_BOARD_STATUS
from tests.pytest_plugin.conftest import BOARDS, LabRun

pytestmark = pytest.mark.live

ALL = """
import pytest, sys

def test_nothing_is_imported():
    assert not {"numpy", "rpcsys.client"} & set(sys.modules)

def test_each_kind(board, board_key):
    assert board.get_function("testing.echo")(board_key) == board.info["key"]

@pytest.mark.board(labels={"name": "rpi4-1"})
def test_one_board(board):
    assert board.lease["server"] == "rpi4-1"

@pytest.mark.board("rpi4", count=2)
def test_two(boards):
    assert [one.info["key"] for one in boards] == ["rpi4", "rpi4"]

class TestShared:
    seen = []

    def test_first(self, module_board):
        self.seen.append(module_board)

    def test_again(self, module_board):
        assert module_board in self.seen[-1:]
"""

HELD = """
import pytest

def test_any(board):
    assert board.listdir() == ["file"]

@pytest.mark.board("pico")
def test_key(board):
    assert board.listdir() == ["file"]

def test_fails(board):
    assert not board.listdir()
"""

TVM = """
import numpy as np, pytest

def test_add(tvm_remote, board_key):
    tvm = pytest.importorskip("tvm")
    x = tvm.runtime.tensor(np.arange(4, dtype="float32"), tvm_remote.cpu())
    assert tvm_remote.get_function("testing.echo")(board_key) == board_key
    assert board_key != "pico", x.numpy().tolist()
"""

MISSING = """
import pytest

@pytest.mark.board("rpi5")
def test_unknown(board):
    pass

@pytest.mark.board("rpi5")
@pytest.mark.xfail
def test_unknown_xfail(board):
    pass

@pytest.mark.board("jetson")
def test_taken(board):
    pass

@pytest.mark.board("pico")
def test_there(board):
    pass
"""

SLEEPS = """
import pytest

@pytest.mark.board("pico")
@pytest.mark.timeout(2, func_only=True)
def test_sleeps(board):
    board.get_function("testing.sleep")(60)

@pytest.mark.board("pico")
def test_next(board):
    pass
"""

WRONG = """
import pytest

@pytest.mark.board("rpi4", count=2)
def test_for_several(board):
    pass

@pytest.mark.board(labels={"no label": 3})
def test_labels(board):
    pass
"""

SHARED = """
import pytest

@pytest.mark.board("rpi4")
def test_own_marker(module_board):
    pass
"""


def test_each_test_runs_on_each_kind(lab_run: LabRun) -> None:
    """Workers lease their own boards, and collection leases none."""
    begun = time.time()
    status, printed = lab_run(ALL, "--boards", "all", "--collect-only", "-q")
    assert status == 0
    names = [f"{name}[{key}]" for name in ("test_each_kind", "test_one_board") for key in ("jetson", "pico", "rpi4")]
    assert [line.partition("::")[2] for line in printed.splitlines()[1:7]] == names
    status, printed = lab_run(ALL, "--boards", "all", "-n", "2", "--dist", "loadfile", "-v", "-rs")
    assert status == 0, printed
    assert "12 passed, 2 skipped" in printed
    assert "no server is 'pico' with name=rpi4-1" in printed
    lab_run.leases(0)
    leased = ["jetson", "jetson", "pico", "pico", "rpi4", "rpi4", "rpi4", "rpi4", "rpi4"]
    leases = lab_run.history(begun, len(leased))
    assert {(lease["outcome"], lease["fault"]) for lease in leases} == {("closed", "")}
    assert sorted(lease["key"] for lease in leases) == leased


def test_a_run_in_the_shell_of_a_hold_uses_its_board(lab_run: LabRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(lab_run.folder))
    with rpcsys.hold("pico", tracker=lab_run.where) as hold:
        with hold.session() as session:
            session.upload(b"here", "file")
        monkeypatch.setenv("RPCSYS_LEASE", hold.path)
        status, printed = lab_run(HELD)
        assert lab_run.leases(1) == ["pico"]
    assert status == 1, printed
    assert "1 failed, 2 passed" in printed
    assert "seen at teardown" not in printed, "its lease has not ended"


def test_workers_run_at_the_same_time(lab_run: LabRun) -> None:
    program = "def test_sleeps(board): board.get_function('testing.sleep')(30)"
    process = lab_run.start(program, "--boards", "jetson,pico", "-n", "2", group=True)
    assert lab_run.leases(2) == ["jetson", "pico"]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert lab_run.leases(0) == []
    assert process.wait(90) == 2


def test_apache_tvms_client_runs_on_three_kinds(lab_run: LabRun) -> None:
    """Its sessions are closed although a failed test's traceback keeps them."""
    pytest.importorskip("tvm.rpc")
    begun = time.time()
    status, printed = lab_run(TVM, "--boards", "all")
    assert status == 1
    assert "1 failed, 2 passed" in printed
    assert "test_add[pico] - AssertionError: [0.0, 1.0, 2.0, 3.0]" in printed
    assert "its client closed it\nnothing had to be cleaned" in printed
    lab_run.leases(0)
    leases = lab_run.history(begun, len(BOARDS))
    assert sorted((lease["key"], lease["outcome"]) for lease in leases) == [(key, "closed") for key in sorted(BOARDS)]


def test_a_lab_without_boards_has_its_own_exit_status(lab_run: LabRun) -> None:
    with lab_run.tracker.request("jetson"):
        status, printed = lab_run(MISSING, "-n", "1", "--rpcsys-wait", "1")
    assert status == NO_BOARD_STATUS, printed
    assert re.search(r"1 passed,( \d+ warnings?,)? 3 errors", printed)  # pytest warns of what other runs left
    assert f"3 had no board, and nothing else failed: exit status {NO_BOARD_STATUS}" in printed
    assert "no server offers 'rpi5'" in printed  # a tracker that has just started waits longer for its boards to return
    assert "Traceback" not in printed
    assert "rpcsys/" not in printed

    failing = f"{MISSING}\ndef test_wrong(): assert 0"
    status, printed = lab_run(failing, "-k", "unknown or wrong")
    assert status == 1
    assert "1 failed" in printed


@pytest.mark.parametrize("more", [(), ("--boards", "all", "-n", "1")])
def test_a_tracker_that_does_not_answer(lab_run: LabRun, more: tuple[str, ...]) -> None:
    status, printed = lab_run("def test_board(board): pass", *more, where="127.0.0.1:1")
    assert status == NO_BOARD_STATUS, printed
    assert "no tracker at 127.0.0.1:1" in printed
    assert "rpcsys/" not in printed


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_timeout_gives_the_board_back(lab_run: LabRun, method: str) -> None:
    status, printed = lab_run(SLEEPS, "--timeout-method", method)
    assert status == 1
    assert lab_run.leases(0) == []
    assert method == "thread" or "1 failed, 1 passed" in printed


def test_ctrl_c_gives_the_board_back(lab_run: LabRun) -> None:
    process = lab_run.start(SLEEPS.replace("timeout(2,", "timeout(60,"), group=True)
    assert lab_run.leases(1) == ["pico"]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(90) == 2
    assert lab_run.leases(0) == []


def test_a_wrong_marker_is_named_in_a_line(lab_run: LabRun) -> None:
    status, printed = lab_run(WRONG)
    assert status == 1
    assert "2 errors" in printed
    assert "the fixture for several is boards" in printed
    assert "rpcsys/" not in printed
    status, printed = lab_run(SHARED)
    assert status == 2
    assert "test_own_marker: module_board is shared" in printed


def test_without_a_lab_of_boards(lab_run: LabRun) -> None:
    """`--rpcsys-lab` starts one on this machine."""
    program = "def test_here(board, lab): assert board.address[0] == lab.tracker_address[0]"
    setting = ("-o", "rpcsys_lab=board1", "--boards", "all")
    status, printed = lab_run(program, "--rpcsys-lab", *setting, "-v", where="127.0.0.1:1")
    assert status == 0, printed
    assert "test_here[board1] PASSED" in printed
