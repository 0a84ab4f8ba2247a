"""The command line, and one round of everything."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import all_met, chosen, main
from benchmarks.cases import all_cases
from benchmarks.figures import MILLISECONDS, Row, at_most
from benchmarks.processes import ROOT


def test_cases_are_chosen_by_how_their_names_begin(tmp_path):
    cases = all_cases(tmp_path)
    assert chosen(cases, []) == cases
    assert {case.name for case in chosen(cases, ["tracker", "null"])} == {
        "null-call",
        "tracker-summary",
        "tracker-request",
        "tracker-allocations",
    }


def test_a_case_that_does_not_exist_is_one_line_and_exit_status_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["no-such-case"])
    assert stopped.value.code == 2
    assert "no case begins with no-such-case" in capsys.readouterr().err


def test_list_names_every_case(capsys, tmp_path):
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.split() == [case.name for case in all_cases(tmp_path)]


def test_check_wants_every_goal_measured_and_met():
    met = Row("c", "w", "raw", MILLISECONDS, 1.0, 1.0, at_most(1.6))
    missed = Row("c", "w", "raw", MILLISECONDS, 2.0, 1.0, at_most(1.6))
    unknown = Row("c", "w", "raw", MILLISECONDS, None, 1.0, at_most(1.6))
    free = Row("c", "w", "raw", MILLISECONDS, 2.0, 1.0)
    assert all_met([met, free])
    assert not all_met([met, missed])
    assert not all_met([met, unknown])


def cases(folder: Path) -> list[str]:
    """All, but those of thousands of boards, which run with few of them (test_replicas.py)."""
    return [case.name for case in all_cases(folder) if not case.name.startswith(("replicas-", "boards-"))]


def one_round(names: list[str], folder: Path, limit_s: float) -> None:
    """Each has its figures, and so have its peers: those of the dev extra are here, other programs may be.

    How good the figures are is not asked.
    """
    report = folder / "report.json"
    command = [sys.executable, "-m", "benchmarks", *names, "--once", "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stderr
    rows = json.loads(report.read_text())["rows"]
    assert {row["case"] for row in rows} == {*names}
    absent = {program for program in ("socat", "haproxy") if shutil.which(program) is None}
    missing = [row for row in rows if row["ours"] is None or row["theirs"] is None]
    assert [(row["case"], row["notes"]) for row in missing if row["peer"] not in absent] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_round_yields_a_figure_for_a_case_of_each_kind(tmp_path):
    names = cases(tmp_path)
    alone = [name for name in names if not any(other.startswith(name) for other in {*names} - {name})]
    firsts = {name.partition("-")[0]: name for name in reversed(alone)}
    one_round([*firsts.values()], tmp_path, 840)


@pytest.mark.release
@pytest.mark.timeout(3000)
def test_one_round_yields_a_figure_for_every_case(tmp_path):
    one_round(cases(tmp_path), tmp_path, 2900)
