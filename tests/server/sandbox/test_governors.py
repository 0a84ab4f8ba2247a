"""Governors are pinned and put back, in a folder with Linux's files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcsys.server.sandbox import governors
from rpcsys.server.sandbox.governors import NOTE, complaint, pin, put_back
from tests.server.frequency import FrequencyFiles


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrequencyFiles:
    """Two CPUs that share a policy, and a third one with its own."""
    monkeypatch.setattr(governors, "ROOT", str(tmp_path))
    return FrequencyFiles(tmp_path, [0, 1], [2])


@pytest.fixture
def folder(tmp_path: Path) -> str:
    made = tmp_path / "server"
    made.mkdir()
    return str(made)


def test_pinned_and_put_back(files: FrequencyFiles, folder: str) -> None:
    assert pin(folder, [0]) == []
    assert files.governors() == ["performance", "ondemand"]
    assert json.loads((Path(folder) / NOTE).read_text()) == {"cpufreq/policy0": "ondemand"}
    assert pin(folder, [0, 2]) == []
    assert files.governors() == ["performance", "performance"]
    assert pin(folder, [1]) == []  # its policy is pinned already
    assert files.governors() == ["performance", "ondemand"]
    assert put_back(folder) == []
    assert files.governors() == ["ondemand", "ondemand"]
    assert os.listdir(folder) == []


def test_the_note_is_written_before_any_governor(
    files: FrequencyFiles, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(governors, "_set", lambda *_: seen.append((Path(folder) / NOTE).exists()) or "")
    pin(folder, [0, 2])
    assert seen == [True, True]


def test_without_a_note_nothing_is_pinned(files: FrequencyFiles, folder: str) -> None:
    (problem,) = pin(f"{folder}/gone", [0])
    assert "cannot be noted" in problem
    assert files.governors() == ["ondemand", "ondemand"]


def test_what_runs_at_its_best_already_is_left_alone(files: FrequencyFiles, folder: str) -> None:
    files.file(0).write_text("performance\n")
    assert pin(folder, [0, 1]) == []
    assert put_back(folder) == []
    assert files.governors() == ["performance", "ondemand"]


def test_what_somebody_else_has_set_meanwhile_stays(files: FrequencyFiles, folder: str) -> None:
    pin(folder, [0])
    files.file(0).write_text("powersave\n")
    assert put_back(folder) == []
    assert files.governors() == ["powersave", "ondemand"]


def test_after_a_kill_the_note_tells(files: FrequencyFiles, folder: str) -> None:
    code = (
        "import os, signal, sys\n"
        "from rpcsys.server.sandbox import governors\n"
        "governors.ROOT = sys.argv[1]\n"
        "governors.pin(sys.argv[2], [0, 2])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, str(files.root), folder]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    assert files.governors() == ["performance", "performance"]
    assert put_back(folder) == []
    assert files.governors() == ["ondemand", "ondemand"]


def test_a_governor_that_cannot_be_set_is_a_problem(files: FrequencyFiles, folder: str) -> None:
    files.file(2).unlink()
    files.file(2).mkdir()
    assert pin(folder, [0, 2]) == []  # what cannot be read is not changed
    assert governors._set("cpufreq/policy2", "performance").endswith("(Is a directory)")
    assert files.governors()[0] == "performance" if files.file(2).is_file() else True


@pytest.mark.parametrize(
    ("cpus", "change", "said"),
    [
        ([0, 2], "", ""),
        ([7], "", "shows no frequency governors"),
        ([0, 2], "unknown", "knows no performance"),
        ([0, 2], "closed", "cannot be written"),
    ],
)
def test_why_nothing_can_be_pinned(
    files: FrequencyFiles, monkeypatch: pytest.MonkeyPatch, cpus: list[int], change: str, said: str
) -> None:
    if change == "unknown":
        files.file(2, "scaling_available_governors").write_text("powersave\n")
    if change == "closed":
        monkeypatch.setattr(governors.os, "access", lambda *_: False)
    assert said in complaint(cpus)
    assert bool(complaint(cpus)) == bool(said)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    note=st.binary(max_size=80)
    | st.dictionaries(st.text(max_size=20), st.text(max_size=12)).map(lambda note: json.dumps(note).encode())
    | st.sampled_from(
        [b'{"../../../etc": "ondemand"}', b'{"cpufreq/policy2": "warp"}', b'{"cpufreq/policy2": 5}', b"[" * 9999]
    )
)
def test_any_note_is_no_error_and_sets_nothing_unknown(files: FrequencyFiles, folder: str, note: bytes) -> None:
    (Path(folder) / NOTE).write_bytes(note)
    put_back(folder)
    assert files.governors() == ["ondemand", "ondemand"]
