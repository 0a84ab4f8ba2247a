"""The figures of a time evaluator, and answers that are none."""

import pytest

from rpcsys.client.timing import TimingResult, told
from rpcsys.errors import ProtocolError


def test_statistics_of_results():
    result = TimingResult([1.0, 2.0, 6.0])
    assert (result.results, result.mean, result.median, result.min, result.max) == ((1.0, 2.0, 6.0), 3.0, 2.0, 1.0, 6.0)
    assert result.std == pytest.approx((14 / 3) ** 0.5)


def test_one_result_has_no_deviation():
    assert TimingResult([0.5]).std == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.5, "1.500 s"), (0.0015, "1.500 ms"), (0.0000015, "1.500 us"), (0.0, "0.000 us")]
)
def test_seconds_as_text(seconds, text):
    assert str(TimingResult([seconds])) == (
        f"median {text}  mean {text}  min {text}  max {text}  std 0.000 us  (1 repeats)"
    )
    assert repr(TimingResult([2.0, 2.0])) == "TimingResult(median=2 s, mean=2 s, std=0 s, repeats=2)"


def test_the_medians_interval_and_the_energy_stand_beside_it():
    result = TimingResult([6.0, 1.0, 5.0, 2.0, 4.0, 3.0], joules=0.125)
    assert result.interval == (1.0, 6.0)
    assert str(result).startswith("median 3.500 s (1.000 s to 6.000 s, 95 %)  mean 3.500 s  min 1.000 s")
    assert str(result).endswith("std 1.708 s  0.125 J  (6 repeats)")
    assert TimingResult([1.0] * 5).interval is None


BOARD = {"before": {"temperature_c": 40.0}, "after": {"temperature_c": 61.0}}


def test_the_boards_state_is_in_the_result():
    result = told({"results": [1.0], "board": BOARD, "warnings": []})
    assert (result.results, result.board, result.warnings) == ((1.0,), BOARD, ())


def test_each_doubtful_measurement_warns_once():
    with pytest.warns(RuntimeWarning, match="warmed by 21 degrees; something else") as said:
        result = told({"results": [1.0, 2.0], "board": BOARD, "warnings": ["warmed by 21 degrees", "something else"]})
    assert len(said) == 1
    assert result.warnings == ("warmed by 21 degrees", "something else")


def test_a_devices_meters_are_in_the_result():
    result = told({"results": [1.0], "joules": 0.5, "meter": "rapl", "meters": {"rapl": 0.5, "dram": 0.1}})
    assert (result.joules, result.meters) == (0.5, {"rapl": 0.5, "dram": 0.1})
    assert told({"results": [1.0]}).joules is None


@pytest.mark.parametrize(
    "answer",
    [
        *(None, [1.0], {}, {"results": []}, {"results": ["x"]}, {"results": 5}, {"results": [1.0], "joules": "x"}),
        *({"results": [1.0], "joules": float("nan")}, {"results": [1.0], "meters": {"a": "b"}}),
    ],
)
def test_an_invalid_answer_is_refused(answer):
    with pytest.raises(ProtocolError, match="makes no sense"):
        told(answer)
