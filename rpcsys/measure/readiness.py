"""Whether a board is fit to be measured on, by what Linux says of it. What a board does not say counts as well."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

HOT_C = 85.0  # small boards are throttled at 80 to 85 degrees
PRESSURE = 10.0  # percent of the last 10 s in which a task was ready and had no CPU
STEP = 0.05  # a larger change of frequency is named; governors step by more


class Readiness(enum.Enum):
    """How fit a board is."""

    READY = "ready"
    BUSY = "busy"  # wait a while, then measure, with care
    HOT = "hot"
    THROTTLED = "throttled"  # wait a while, then refuse: its times are not its own


def readiness(state: Mapping[str, Any]) -> tuple[Readiness, str]:
    """How fit a board in this state is, and why it is not, for a person."""
    throttled, heat = state.get("throttled"), _number(state.get("temperature_c"))
    degrees = "" if heat is None else f" at {heat:.0f} degrees"
    if throttled:
        return Readiness.THROTTLED, f"it is throttled{degrees}"
    if heat is not None and heat >= HOT_C:
        return Readiness.HOT, f"it is hot{degrees}"
    pressure = _number(state.get("pressure_cpu"))
    if pressure is not None and pressure >= PRESSURE:
        return Readiness.BUSY, f"its processes waited {pressure:.0f} % of the last 10 s for a CPU"
    return Readiness.READY, ""


def changed_frequency(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The change of a CPU's frequency between two states, for a person; "" where there is none to name."""
    earlier, later = (each.get("cpu_mhz") for each in (before, after))
    if not isinstance(earlier, Mapping) or not isinstance(later, Mapping):
        return ""
    for cpu in earlier.keys() & later.keys():
        first, second = _number(earlier[cpu]), _number(later[cpu])
        if first and second and abs(second - first) > STEP * max(first, second):
            return f"CPU {cpu} went from {first:.0f} to {second:.0f} MHz"
    return ""


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) else None
