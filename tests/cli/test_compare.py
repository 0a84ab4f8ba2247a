"""``rpcsys compare`` in a lab."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import measuring
from rpcsys.lab import Lab
from tests.cli.conftest import Command


@pytest.fixture(scope="module")
def spin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measuring.compiled(tmp_path_factory.mktemp("spin"))


QUICK = ("--limit", "2", "--least", "20%", "--patience", "0")


@pytest.mark.live
def test_an_answer_is_exit_status_0(lab: Lab, spin: Path, rpcsys: Command, tmp_path: Path) -> None:
    subjects = [f"{spin}@function={name}" for name in ("base", "slower")]
    done = rpcsys(
        "compare",
        *subjects,
        "--key",
        "cpu",
        "--boards",
        "all",
        *QUICK,
        "--svg",
        "runs.svg",
        tracker=lab.tracker_address,
    )
    assert done.returncode == 0, done.stderr
    first, *_ = done.stdout.splitlines()
    assert first.startswith("spin.so@function=slower")
    assert "SUBJECT" in done.stdout
    assert "wrote:  runs.svg" in done.stdout
    assert (tmp_path / "runs.svg").read_text().startswith("<svg")


@pytest.mark.live
def test_json_is_one_line(lab: Lab, spin: Path, rpcsys: Command) -> None:
    subjects = [f"{spin}@function=base"] * 2
    done = rpcsys("compare", *subjects, "--key", "cpu", *QUICK, "--json", "--seed", "3", tracker=lab.tracker_address)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["seed"] == 3
    assert said["comparisons"][0]["verdict"] in ("same", "unknown")


@pytest.mark.live
def test_a_function_that_is_not_there_is_one_line(lab: Lab, spin: Path, rpcsys: Command) -> None:
    subjects = (f"{spin}@function=base", f"{spin}@function=none")
    done = rpcsys("compare", *subjects, "--key", "cpu", tracker=lab.tracker_address)
    assert done.returncode == 1
    assert done.stderr.endswith("rpcsys: error: the module has no function 'none'; it has base, slower\n")
