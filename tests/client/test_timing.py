"""What is said of a time evaluator's figures."""

from __future__ import annotations

import pytest

from rpcsys.client.timing import TimingResult, told
from rpcsys.errors import ProtocolError


def test_figures():
    result = TimingResult([1.0, 2.0, 6.0])
    assert (result.results, result.mean, result.median, result.min, result.max) == ((1.0, 2.0, 6.0), 3.0, 2.0, 1.0, 6.0)
    assert result.std == pytest.approx((14 / 3) ** 0.5)


def test_one_figure_has_no_spread():
    assert TimingResult([0.5]).std == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.5, "1.500 s"), (0.0015, "1.500 ms"), (0.0000015, "1.500 us"), (0.0, "0.000 us")]
)
def test_for_people(seconds, text):
    assert str(TimingResult([seconds])) == (
        f"mean {text}  median {text}  min {text}  max {text}  std 0.000 us  (1 repeats)"
    )
    assert repr(TimingResult([2.0, 2.0])) == "TimingResult(mean=2 s, median=2 s, std=0 s, repeats=2)"


BOARD = {"before": {"temperature_c": 40.0}, "after": {"temperature_c": 61.0}}


def test_what_the_device_says_of_itself():
    result = told({"results": [1.0], "board": BOARD, "warnings": []})
    assert (result.results, result.board, result.warnings) == ((1.0,), BOARD, ())


def test_what_is_doubtful_is_said_once_for_each_measurement():
    with pytest.warns(RuntimeWarning, match="warmed by 21 degrees; something else") as said:
        result = told({"results": [1.0, 2.0], "board": BOARD, "warnings": ["warmed by 21 degrees", "something else"]})
    assert len(said) == 1
    assert result.warnings == ("warmed by 21 degrees", "something else")


@pytest.mark.parametrize("answer", [None, [1.0], {}, {"results": []}, {"results": ["x"]}, {"results": 5}])
def test_answers_that_make_no_sense(answer):
    with pytest.raises(ProtocolError, match="makes no sense"):
        told(answer)
