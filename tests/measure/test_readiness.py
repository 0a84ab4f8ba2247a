"""Whether a board is fit to be measured on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from rpcsys.measure.readiness import Readiness, changed_frequency, readiness
from tests.client.test_answers import ANY_JSON


@pytest.mark.parametrize(
    ("state", "fit", "why"),
    [
        ({}, Readiness.READY, ""),
        ({"load": 20.0, "temperature_c": 60.0, "pressure_cpu": 5.0, "throttled": False}, Readiness.READY, ""),
        ({"throttled": True, "temperature_c": 90.2}, Readiness.THROTTLED, "it is throttled at 90 degrees"),
        ({"throttled": 2}, Readiness.THROTTLED, "it is throttled"),
        ({"temperature_c": 85.0}, Readiness.HOT, "it is hot at 85 degrees"),
        ({"pressure_cpu": 34.2}, Readiness.BUSY, "its processes waited 34 % of the last 10 s for a CPU"),
    ],
)
def test_readiness(state: dict[str, Any], fit: Readiness, why: str):
    assert readiness(state) == (fit, why)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"0": 1500.0}, {"0": 1000.0}, "CPU 0 went from 1500 to 1000 MHz"),
        ({"0": 1500.0}, {"0": 1490.0}, ""),
        ({"0": 1500.0}, {"1": 600.0}, ""),
        ({"0": "x"}, {"0": None}, ""),
    ],
)
def test_a_changed_frequency_is_named(before: dict[str, Any], after: dict[str, Any], said: str):
    assert changed_frequency({"cpu_mhz": before}, {"cpu_mhz": after}) == said
    assert changed_frequency({}, {"cpu_mhz": after}) == ""


@settings(max_examples=50)
@given(said=ANY_JSON)
def test_any_state_is_read(said: Any):
    state = {"throttled": said, "temperature_c": said, "pressure_cpu": said, "cpu_mhz": said}
    assert isinstance(readiness(state)[0], Readiness)
    assert isinstance(changed_frequency(state, state), str)
