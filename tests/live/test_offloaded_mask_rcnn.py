"""The example of a network that is offloaded from devices to an edge server, run as a user runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.daemons import ROOT, Daemons

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
EXAMPLE = ROOT / "examples" / "offloaded_mask_rcnn.py"
SMALLER = ("--size", "128", "--width", "0.5", "--frames", "6", "--clients", "3")


def test_offloaded_results_are_those_of_a_device_alone(daemons: Daemons, tmp_path: Path, record_property: Any) -> None:
    """Bit for bit. The speeds are recorded and not checked: other tests run at the same time."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(EXAMPLE), *SMALLER, "--json", str(figures)]
    example = daemons.launch("example", command)  # the fixture ends it also when the test fails
    status = example.process.wait(800)
    said = example.stdout_path.read_text()
    assert status == 0, example.stderr()
    assert "results of all: equal, bit for bit" in said
    rates = {(way, number): rate for way, number, rate in json.loads(figures.read_text())}
    ways = list(dict.fromkeys(way for way, _ in rates))
    assert len(rates) == 2 * len(ways) == 6
    for number in (1, 3):
        alone, in_turn, in_flight = (rates[way, number] for way in ways)
        assert min(alone, in_turn, in_flight) > 0
        record_property(f"{number} device(s), frames in flight, times alone", round(in_flight / alone, 2))
        record_property(f"{number} device(s), one at a time, times alone", round(in_turn / alone, 2))
    for how in ("float16", "int8", "int8+zlib"):
        assert f"roi_features  to stage1    {how}" in said
