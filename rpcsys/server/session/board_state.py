"""What state the board is in, as far as Linux shows it: a figure means little without.

Read around a measurement: CPU frequency and governor of the CPUs this process may use
(``/sys/devices/system/cpu/cpuN/cpufreq``, in kHz there), the hottest thermal zone
(``/sys/class/thermal``, in thousandths of a degree there) and the load average. What a board does not
show, a virtual machine shows little, is simply absent.
"""

from __future__ import annotations

import glob
import os
from typing import Any, Dict, List, Optional

#: A difference that explains a difference in time; governors step by more, noise is less.
FREQUENCY_SHARE = 0.05
#: Above this rise a small board without a fan is on its way to being throttled.
TEMPERATURE_K = 10.0


def read(root: str = "/") -> Dict[str, Any]:
    """The state now: any of ``cpu_mhz`` (by CPU), ``governor`` (by CPU), ``temperature_c``, ``load``."""
    state: Dict[str, Any] = {}
    frequencies, governors = {}, {}
    for cpu in _cpus():
        folder = os.path.join(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq")
        frequency = _number(os.path.join(folder, "scaling_cur_freq"))
        governor = _text(os.path.join(folder, "scaling_governor"))
        if frequency is not None:
            frequencies[str(cpu)] = frequency / 1000
        if governor:
            governors[str(cpu)] = governor
    zones = sorted(glob.glob(os.path.join(glob.escape(root), "sys/class/thermal/thermal_zone*/temp")))
    temperatures = [value / 1000 for value in map(_number, zones) if value is not None]
    load = _text(os.path.join(root, "proc/loadavg"))
    if frequencies:
        state["cpu_mhz"] = frequencies
    if governors:
        state["governor"] = governors
    if temperatures:
        state["temperature_c"] = max(temperatures)
    if load:
        state["load"] = float(load.split()[0])
    return state


def changes(before: Dict[str, Any], after: Dict[str, Any]) -> List[str]:
    """What changed between two states so that figures from in between are doubtful; one line each."""
    found = []
    for cpu, mhz in before.get("cpu_mhz", {}).items():
        now = after.get("cpu_mhz", {}).get(cpu, mhz)
        if abs(now - mhz) > FREQUENCY_SHARE * max(now, mhz):
            found.append(f"CPU {cpu} went from {mhz:.0f} to {now:.0f} MHz during the measurement")
    for cpu, governor in before.get("governor", {}).items():
        now = after.get("governor", {}).get(cpu, governor)
        if now != governor:
            found.append(f"the governor of CPU {cpu} went from {governor} to {now} during the measurement")
    rise = after.get("temperature_c", 0.0) - before.get("temperature_c", after.get("temperature_c", 0.0))
    if rise > TEMPERATURE_K:
        found.append(f"the board warmed by {rise:.0f} degrees during the measurement; add cooldown_s")
    return found


def _cpus() -> List[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _text(path: str) -> Optional[str]:
    try:
        with open(path) as stream:
            return stream.read(4096).strip()
    except OSError:
        return None


def _number(path: str) -> Optional[float]:
    text = _text(path)
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
