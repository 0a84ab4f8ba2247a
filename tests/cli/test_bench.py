"""``rpcsys bench``: its options, and what it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rpcsys import measure
from rpcsys.cli import bench as command
from rpcsys.cli.bench import numbers_of_threads, share
from rpcsys.cli.commands import run_group
from rpcsys.errors import RpcsysError, UsageError
from rpcsys.measure.regressions import cell_verdicts
from rpcsys.measure.tables import BenchTable, Cell, Measured
from tests.cli.conftest import Command

CELL = Cell("m.onnx", "rpi4-1", "rpi4", "cpu:0", 2)
SIX = tuple((0.01 + place * 1e-5,) for place in range(6))


@pytest.mark.parametrize(("text", "value"), [("2%", 0.02), ("2 %", 0.02), ("0.5", 0.005), ("0%", 0.0)])
def test_a_share_is_in_percent(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "two", "100%", "-1", "nan", "inf"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(UsageError, match="such as 2%"):
        share(text)


def test_numbers_of_threads() -> None:
    assert numbers_of_threads("1,2, 4,2") == [1, 2, 4]
    for wrong in ("", "0", "1,", "x", "-1", "1025", "٣"):
        with pytest.raises(UsageError, match="such as 1,2,4"):
            numbers_of_threads(wrong)


def test_the_table_and_what_was_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    row = Measured(CELL, SIX, "rpcsys.onnx", 5_000_000, 0.0125, ("busy",), doubtful=1)
    lost = Measured(CELL._replace(threads=4), error="the board is gone")
    command._print_table(BenchTable((row, lost)), as_json=False)
    out, err = capsys.readouterr()
    head, line, failed = out.splitlines()
    assert " ".join(head.split()) == "MODEL BOARD RUNTIME DEVICE THREADS MEDIAN 95 % MEMORY ENERGY DOUBTS"
    assert line.split("  ")[0] == "m.onnx"
    for text in ("rpi4-1", "onnx ", "cpu:0", "10.02 ms", "10 ms to 10.05 ms", "5.0 MB", "0.0125 J", "1 of 6"):
        assert text in line
    assert failed == "m.onnx on rpi4-1 (cpu:0), 4 threads: not measured: the board is gone"
    assert err == "rpcsys: warning: rpi4-1: busy\n"


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (Measured(CELL, SIX, "rpcsys.onnx"), Measured(CELL._replace(threads=4), error="gone"))
    command._print_table(BenchTable(rows), as_json=True)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["model"], first["threads"], first["median"]) == ("m.onnx", 2, pytest.approx(0.010025))
    assert len(first["blocks"]) == 6
    assert (second["error"], second["median"], second["interval"]) == ("gone", None, None)


def test_a_slower_cell_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    base = BenchTable((Measured(CELL, SIX),))
    slow = BenchTable((Measured(CELL, tuple((value * 1.1,) for (value,) in SIX)),))
    assert command._report(cell_verdicts(base, base), False, [Path("a.json")]) == 0
    assert "not slower" in capsys.readouterr().out
    assert command._report(cell_verdicts(base, slow), False, [Path("a.json")]) == 1
    assert "m.onnx on rpi4-1 (cpu:0), 2 threads: slower by 10.0%" in capsys.readouterr().out
    assert command._report(cell_verdicts(base, slow), True, [Path("a.json")]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["outcome"], said["model"]) == ("slower", "m.onnx")
    assert said["shift"]["ratio"] == pytest.approx(0.1)


def test_nothing_to_compare_is_an_error() -> None:
    base = BenchTable((Measured(CELL, SIX),))
    with pytest.raises(UsageError, match=r"a\.json: none of these models"):
        command._report([], False, [Path("a.json")])
    lost = BenchTable((Measured(CELL, error="the board is gone"),))
    with pytest.raises(RpcsysError, match=r"nothing could be compared with a\.json: the board is gone"):
        command._report(cell_verdicts(base, lost), False, [Path("a.json")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument 'MODEL...'"),
        (["nowhere.onnx"], "no such model: nowhere.onnx"),
        ([__file__, "--threads", "0"], "'0' is no number of threads"),
        ([__file__, "--devices", "gpu"], "is no name of a device"),
        ([__file__, "--least", "lots"], "give a share from 0%"),
        ([__file__, "--boards", "two"], "'--boards'"),
        ([__file__, "--sessions", "0"], "'--sessions'"),
        ([__file__, "--save", "no/t.json"], "--save no/t.json: there is no folder no"),
        ([__file__, "--against", "nowhere.json"], "cannot read nowhere.json: No such file"),
        ([__file__, "--against", __file__], "is no table of rpcsys bench (it is no JSON); make one with --save"),
        ([__file__, __file__], "a model is given twice"),
    ],
)
def test_mistakes_end_before_a_tracker_is_asked(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_group(["bench", "--tracker", "127.0.0.1:1", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_without_its_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.delitem(sys.modules, "rpcsys.measure.regressions", raising=False)
    monkeypatch.delattr(measure, "confirmed", raising=False)
    assert run_group(["bench", "m.onnx"]) == 2
    err = capsys.readouterr().err
    assert err.endswith("measuring needs scipy, which is not installed; type: pip install 'rpcsys[measure]'\n")
    assert err.count("\n") == 1


def test_no_tracker_is_one_line(rpcsys: Command, tmp_path: Path) -> None:
    (tmp_path / "m.so").write_bytes(b"never read")
    done = rpcsys("bench", "m.so", tracker=("127.0.0.1", 1))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
