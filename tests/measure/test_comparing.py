"""Comparisons on a real session: A/A, A/B, several subjects, and what is refused."""

from __future__ import annotations

import json
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcsys import measure
from rpcsys.client import Session
from rpcsys.errors import NotSupported, UsageError
from rpcsys.measure import reports
from rpcsys.measure.judge import Verdict
from tests.device import Device


@pytest.fixture
def burner() -> Iterator[None]:
    """Another thread of this process works, with short breaks."""
    ended = threading.Event()

    def burn() -> None:
        while not ended.wait(1e-4):
            sum(range(100_000))

    thread = threading.Thread(target=burn)
    thread.start()
    yield
    ended.set()
    thread.join()


def compared(session: Session, spin: Path, *names: str, **more: Any) -> measure.ModelComparison:
    options = {"limit_s": 4, "least": 0.02, "patience_s": 0, "seed": 1, **more}
    return measure.compare(session, [f"{spin}@function={name}" for name in names], **options)


def test_a_function_and_itself(shared_session: Session, spin: Path, burner: None):
    found = compared(shared_session, spin, "base", "base")
    assert found.judgements[0].verdict in (Verdict.SAME, Verdict.UNKNOWN)
    assert found.measured_s < 60
    assert len(found.boards[0].blocks.seconds) > 10
    assert found.subjects == ("spin.so@function=base (no. 1)", "spin.so@function=base (no. 2)")


def test_three_subjects_and_their_reports(shared_session: Session, spin: Path, tmp_path: Path):
    """A planted 2 %: on a machine that is too busy the answer is that nothing is known, and never the wrong side."""
    done: list[float] = []
    found = compared(
        shared_session, spin, "base", "slower", "base", least=0.01, progress=lambda at, most: done.append(at / most)
    )
    assert found.judgements[0].verdict in (Verdict.SLOWER, Verdict.UNKNOWN)
    assert found.judgements[1].verdict in (Verdict.SAME, Verdict.UNKNOWN)
    assert 0 < done[0] <= done[-1] <= 1
    assert str(found).splitlines()[0].startswith("spin.so@function=slower")
    said = json.loads(json.dumps(reports.as_json(found), allow_nan=False))
    assert said["comparisons"][0]["verdict"] == found.judgements[0].verdict.value
    assert (said["seed"], said["least"]) == (1, 0.01)
    assert [len(row) for row in reports.rows(found, 0.95)] == [len(reports.HEAD)] * 3
    measure.draw(found, tmp_path / "runs.svg")
    assert ET.parse(tmp_path / "runs.svg").getroot().tag.endswith("svg")


def test_models_and_their_outputs(two_models: tuple[Path, Path], spin: Path):
    with Device() as device, device.session() as session:
        inputs = {"x": np.ones((4, 64), "float32")}
        found = measure.compare(session, two_models, inputs=inputs, limit_s=1, least=0.5, patience_s=0)
        assert found.outputs == ("outputs differ by at most 16",)
        assert found.subjects == ("old.onnx", "new.onnx")
        other = measure.compare(session, [two_models[0], f"{spin}@function=base"], limit_s=1, least=0.5, patience_s=0)
        assert other.outputs == ("output 0 has shape [], not [4, 64]",)
        assert session.memory()["objects"] <= 8  # models of earlier rounds are freed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"least": 0.0}, "least difference that matters is from 0.01% to 50.00%"),
        ({"confidence": 1.0}, "the confidence is from"),
        ({"limit_s": 0.5}, "the limit is from 1 second"),
        ({"limit_s": float("nan")}, "the limit is from 1 second"),
        ({"patience_s": -1}, "the patience is from 0"),
        ({"seed": -1}, "the seed is a whole number"),
        ({"inputs": {"z": np.ones(1)}}, "no input 'z'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    options: dict[str, Any], said: str, two_models: tuple[Path, Path]
):
    with pytest.raises(UsageError, match=said):
        measure.compare([], two_models, **options)


def test_what_is_compared_is_checked(spin: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="give 2 to 20 models"):
        measure.compare([], [spin])
    with pytest.raises(UsageError, match="no such model"):
        measure.compare([], [spin, tmp_path / "none.onnx"])
    with pytest.raises(UsageError, match="needs a session, or a tracker"):
        measure.compare([], [spin, spin])


def test_an_older_server_is_named(spin: Path):
    with Device() as device, device.session() as session:
        del session.info["capabilities"]["turns"]
        with pytest.raises(NotSupported, match="times no functions in turns; update rpcsys there"):
            compared(session, spin, "base", "base")


def test_a_throttled_board_is_waited_for_and_refused(spin: Path, monkeypatch: pytest.MonkeyPatch):
    from rpcsys.measure import board

    take, times = board.MeasuredBoard.take, []

    def throttled(self: board.MeasuredBoard, report: Any) -> None:
        take(self, report)
        times.append(1)
        self.state = {"throttled": True, "temperature_c": 91.0}

    monkeypatch.setattr(board.MeasuredBoard, "take", throttled)
    with Device() as device, device.session() as session:
        found = compared(session, spin, "base", "base", patience_s=0.6)
        assert found.judgements[0].verdict is Verdict.UNKNOWN
        assert str(found).startswith("spin.so@function=base (no. 2): this board cannot tell 2.0 % today: ")
        assert "is not measured on: it is throttled at 91 degrees" in str(found)
        assert len(times) in (2, 3)  # a round, and at least one look


def test_a_hot_board_is_measured_with_a_note(spin: Path, monkeypatch: pytest.MonkeyPatch):
    from rpcsys.measure import board

    take = board.MeasuredBoard.take

    def hot(self: board.MeasuredBoard, report: Any) -> None:
        take(self, report)
        self.state = {"temperature_c": 86.0}

    monkeypatch.setattr(board.MeasuredBoard, "take", hot)
    with Device() as device, device.session() as session:
        found = compared(session, spin, "base", "base", limit_s=1)
        assert "it is hot at 86 degrees" in found.boards[0].notes


def test_models_that_load_slowly_are_loaded_once(spin: Path, monkeypatch: pytest.MonkeyPatch):
    from rpcsys.measure import schedule

    monkeypatch.setattr(schedule, "LOADS", 1e9)
    with Device() as device, device.session() as session:
        found = compared(session, spin, "base", "base", limit_s=1)
        assert any("loading takes too long" in note for note in found.boards[0].notes)
