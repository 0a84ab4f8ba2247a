"""One board with an open session, whose device runs in this test's own process or answers as the test wants."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from rpcsys.errors import SessionLost
from rpcsys.tvm import open_board
from rpcsys.tvm.artefact import Artefact
from rpcsys.tvm.open_board import CandidateTimeout, OpenBoard, TuningPlan
from rpcsys.tvm.tuning_state import Candidate, CandidateQueue, Standing
from tests.device import Device

BODIES = {"well": "return 0;", "fails": "return -1;", "aborts": "abort();", "hangs": "for (;;) sleep(1);"}
OPTIONS = {"number": 1, "repeat": 2, "min_repeat_ms": 0}


class Work:
    """A source of candidates."""

    def __init__(self, wanted: list[Candidate]) -> None:
        self.queue = CandidateQueue()
        self.kept: list[Candidate] = []
        self.grown = 0
        for candidate in wanted:
            self.queue.add(candidate)

    def grow(self) -> None:
        self.grown += 1

    def take(self, *, fresh: bool) -> Candidate | None:
        return self.queue.take(fresh=fresh)

    def lost(self, under_way: list[Candidate], error: Exception) -> None:
        failed = self.queue.lost(under_way)
        if failed is not None:
            failed.answer(error=error)

    def put_back(self, under_way: list[Candidate]) -> None:
        self.queue.put_back(under_way)

    def keep(self, candidate: Candidate, board: dict[str, Any], seconds: list[float]) -> None:
        self.kept.append(candidate)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("candidates")
    for name, body in BODIES.items():
        source = f"#include <stdlib.h>\n#include <unistd.h>\nint __tvm_ffi_main(void) {{ {body} }}"
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(folder / f"{name}.so"), "-"]
        subprocess.run(command, input=source, text=True, check=True)
    return folder


def plan(timeout_s: float = 20.0) -> TuningPlan:
    return TuningPlan("rpi4", None, 1, OPTIONS, timeout_s, None)


def wanted(folder: Path, *names: str) -> list[Candidate]:
    return [Candidate(Artefact(str(folder / f"{name}.so")), "cpu:0", (("int8", (4,)),)) for name in names]


def test_candidates_are_measured_and_their_own_errors_are_theirs(folder: Path) -> None:
    made = wanted(folder, "well", "fails", "none", "well")
    work = Work(made)
    with Device() as device, device.session() as session:
        assert OpenBoard(session, plan()).measure(work)
    assert work.kept == [made[0], made[3]]
    assert len(made[0].outcome.result()) == 2
    assert "failed with status -1" in str(made[1].outcome.exception())
    assert "cannot be read" in str(made[2].outcome.exception())


def test_the_one_that_ends_the_session_is_suspected_and_the_next_one_waits(folder: Path) -> None:
    made = wanted(folder, "well", "aborts", "well")
    work = Work(made)
    with Device() as device, device.session() as session:
        assert not OpenBoard(session, plan()).measure(work)
    assert [each.standing for each in made] == [Standing.DONE, Standing.SUSPECTED, Standing.WAITING]
    with Device() as device, device.session() as session:
        assert not OpenBoard(session, plan()).measure(work)
    assert isinstance(made[1].outcome.exception(), SessionLost)
    with Device() as device, device.session() as session:
        assert OpenBoard(session, plan()).measure(work)
    assert made[2].outcome.result()


def test_one_that_hangs_has_a_timeout(folder: Path) -> None:
    made = wanted(folder, "hangs", "well")
    with Device() as device, device.session() as session:
        assert not OpenBoard(session, plan(timeout_s=1.5)).measure(Work(made))
    assert str(made[0].outcome.exception()) == "Timeout, killed after 1.5 seconds"
    assert isinstance(made[0].outcome.exception(), CandidateTimeout)
    assert made[1].standing is Standing.WAITING


def test_a_session_that_has_ended_before_costs_nothing(folder: Path) -> None:
    made = wanted(folder, "well", "well")
    work = Work(made)
    with Device() as device:
        session = device.session()
        session.close()
        board = OpenBoard(session, plan())
        board.measure(work)
    assert [each.standing for each in made] == [Standing.WAITING] * 2


def test_a_session_that_has_loaded_much_is_not_used_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_board, "MAX_LOADED", 3)
    made = wanted(folder, *["well"] * 5)
    work = Work(made)
    with Device() as device, device.session() as session:
        assert not OpenBoard(session, plan()).measure(work)
    assert [each.outcome.done() for each in made] == [True] * 3 + [False] * 2
    assert len(work.queue) == 2


def test_an_error_of_the_source_leaves_no_candidate_without_an_outcome(folder: Path) -> None:
    made = wanted(folder, "well", "well")
    work = Work(made)
    work.keep = lambda *_: 1 / 0  # type: ignore[method-assign]
    with Device() as device, device.session() as session, pytest.raises(ZeroDivisionError):
        OpenBoard(session, plan()).measure(work)
    assert all(each.outcome.done() for each in made)
