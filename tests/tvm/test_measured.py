"""What is known of candidates, and on what it depends."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rpcsys.result_store import ResultStore
from rpcsys.tvm.artefact import Artefact
from rpcsys.tvm.measured import KnownResults, board_of
from rpcsys.tvm.tuning_state import Candidate
from tests.device import Device

OPTIONS = {"number": 3, "repeat": 1}
BOARD = {"key": "rpi4", "arch": "aarch64", "cores": 4, "devices": ["Cortex-A72"], "versions": {"tvm": "0.27"}}
ARGUMENTS = (("float32", (4, 4)),)


@pytest.fixture
def candidate(tmp_path: Path) -> Candidate:
    (tmp_path / "candidate.so").write_bytes(b"code")
    return Candidate(Artefact(str(tmp_path / "candidate.so")), "cpu:0", ARGUMENTS)


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "results.sqlite")


def test_a_result_is_known_of_the_same_code_on_such_a_board(store: ResultStore, candidate: Candidate) -> None:
    KnownResults(store, OPTIONS).keep(candidate, BOARD, [1.5])
    again = Candidate(Artefact(candidate.artefact.path), "cpu:0", ARGUMENTS)
    assert KnownResults(store, OPTIONS).find([again], dict(BOARD)) == {again: [1.5]}


@pytest.mark.parametrize(
    "change",
    [{"key": "rpi5"}, {"arch": "x86_64"}, {"cores": 2}, {"devices": ["Cortex-A76"]}, {"versions": {"tvm": "0.28"}}],
    ids=lambda change: next(iter(change)),
)
def test_another_board_is_another_measurement(store: ResultStore, candidate: Candidate, change: dict) -> None:
    measured = KnownResults(store, OPTIONS)
    measured.keep(candidate, BOARD, [1.5])
    assert measured.find([candidate], {**BOARD, **change}) == {}


def test_other_code_arguments_devices_and_options_are_other_measurements(
    store: ResultStore, candidate: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KnownResults(store, OPTIONS).keep(candidate, BOARD, [1.5])
    (tmp_path / "other.so").write_bytes(b"other code")
    others = [
        Candidate(Artefact(str(tmp_path / "other.so")), "cpu:0", ARGUMENTS),
        Candidate(candidate.artefact, "opencl:0", ARGUMENTS),
        Candidate(candidate.artefact, "cpu:0", (("float32", (4, 5)),)),
        Candidate(candidate.artefact, "cpu:0", (("float64", (4, 4)),)),
    ]
    assert KnownResults(store, OPTIONS).find(others, BOARD) == {}
    assert KnownResults(store, {**OPTIONS, "number": 4}).find([candidate], BOARD) == {}
    monkeypatch.setattr("rpcsys.__version__", "9.9")
    assert KnownResults(store, OPTIONS).find([candidate], BOARD) == {}


def test_what_is_to_be_measured_again_is_not_known_and_is_replaced(store: ResultStore, candidate: Candidate) -> None:
    again = KnownResults(store, OPTIONS, again=True)
    again.keep(candidate, BOARD, [1.5])
    assert again.find([candidate], BOARD) == {}
    again.keep(candidate, BOARD, [2.5])
    assert KnownResults(store, OPTIONS).find([candidate], BOARD) == {candidate: [2.5]}


def test_without_a_store_nothing_is_known(candidate: Candidate) -> None:
    measured = KnownResults(None, OPTIONS)
    measured.keep(candidate, BOARD, [1.5])
    assert measured.find([candidate], BOARD) == {}
    measured.close()


def test_a_file_that_cannot_be_read_is_not_known(store: ResultStore) -> None:
    assert KnownResults(store, OPTIONS).find([Candidate(Artefact("/none.so"), "cpu:0", ())], BOARD) == {}


def test_a_store_that_fails_costs_no_measurement(
    store: ResultStore, candidate: Candidate, caplog: pytest.LogCaptureFixture
) -> None:
    measured = KnownResults(store, OPTIONS)
    store.close()
    with caplog.at_level(logging.WARNING, "rpcsys.tuning"):
        measured.keep(candidate, BOARD, [1.5])
        measured.keep(candidate, BOARD, [1.5])
        assert measured.find([candidate], BOARD) == {}
    assert [record.message.endswith("results are not kept") for record in caplog.records] == [True]


def test_a_board_is_its_key_its_kind_and_its_versions() -> None:
    with Device() as device, device.session() as session:
        board = board_of(session, "rpi4")
        assert board["key"] == "rpi4"
        assert board["arch"] == session.info["machine"]["arch"]
        assert board["versions"]["libc"] == session.info["capabilities"]["versions"]["libc"]
        session.info.clear()
        assert board_of(session, "rpi4")["devices"] == []
