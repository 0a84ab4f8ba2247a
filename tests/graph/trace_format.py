"""Checks the rules of the Trace Event Format that viewers such as Perfetto rely on, for rpcsys's events.

Source: "Trace Event Format" (Google, 2016): JSON Object Format, Complete Events, Metadata Events.
"""

from __future__ import annotations

import math
from typing import Any

#: Metadata events, and the type of each one's value.
METADATA = {"process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}


def check_format(trace: Any) -> None:
    """Assert that viewers accept the parsed ``trace``: every event on a named row, none within another."""
    assert isinstance(trace, dict)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[int, int]] = set()
    busy_until: dict[tuple[int, int], float] = {}
    for event in trace["traceEvents"]:
        row = (event["pid"], event["tid"])
        assert all(type(number) is int for number in row)
        assert isinstance(event["name"], str)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            name, kind = METADATA[event["name"]]
            assert type(event["args"][name]) is kind
            named.add(row)
            continue
        assert event["ph"] == "X"
        assert isinstance(event["cat"], str)
        assert row in named
        for time in (event["ts"], event["dur"]):
            assert isinstance(time, (int, float))
            assert math.isfinite(time)
            assert time >= 0
        assert event["ts"] >= busy_until.get(row, 0.0) - 0.001  # microseconds, rounded
        busy_until[row] = event["ts"] + event["dur"]
