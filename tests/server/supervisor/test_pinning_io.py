"""A thread pins governors, in a folder with Linux's files, and the server says once what it cannot do."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from rpcsys.server.sandbox import governors
from rpcsys.server.supervisor.pinning_io import GovernorPins
from tests.live.daemons import wait_until
from tests.server.frequency import FrequencyFiles


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrequencyFiles:
    monkeypatch.setattr(governors, "ROOT", str(tmp_path))
    return FrequencyFiles(tmp_path, [0], [1])


def test_slots_are_pinned_soon_and_all_are_put_back_at_the_end(files: FrequencyFiles, tmp_path: Path) -> None:
    pins = GovernorPins(str(tmp_path), [[0], [1]])
    pins.pin((1,))
    wait_until(lambda: files.governors() == ["ondemand", "performance"], 30, "CPU 1 is pinned")
    pins.pin((0, 1))
    pins.pin((0,))
    wait_until(lambda: files.governors() == ["performance", "ondemand"], 30, "CPU 0 is pinned alone")
    pins.close()
    assert files.governors() == ["ondemand", "ondemand"]
    assert not any(thread.name == "rpcsys-governors" for thread in threading.enumerate())


def test_a_server_that_pinned_nothing_has_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    GovernorPins(str(tmp_path), [[0]]).close()
    assert threading.active_count() == before


def test_each_problem_is_logged_once(
    files: FrequencyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(governors, "_set", lambda policy, governor: f"{policy} is broken")
    pins = GovernorPins(str(tmp_path), [[0], [1]])
    with caplog.at_level(logging.WARNING):
        for slots in ((0,), (), (0,)):
            pins.pin(slots)
        pins.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(set(said))


@pytest.mark.parametrize(("cpus", "warnings"), [([[0], [1]], 0), ([[5]], 1)])
def test_one_warning_at_the_start(
    files: FrequencyFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture, cpus: list[list[int]], warnings: int
) -> None:
    with caplog.at_level(logging.WARNING):
        GovernorPins(str(tmp_path), cpus).warn()
    assert [record.getMessage()[:16] for record in caplog.records] == ["--pin-governor: "] * warnings
