"""The board's state as Linux shows it in ``/sys`` and ``/proc``, and what in it makes timings doubtful.

Values that a board does not provide are absent. Two states have what happened in between: `since` makes shares of their
counters. Sources: the kernel's Documentation, admin-guide/pm/cpufreq.rst, driver-api/thermal/sysfs-api.rst,
filesystems/proc.rst, accounting/psi.rst, and ABI/testing/sysfs-devices-system-cpu (thermal_throttle).

Limitations: Linux counts in hundredths of a second, so that shares of less than `SHORTEST_S` are not made. Processes
that this one has started and that still run are others. In a container, ``/proc/stat`` is the whole machine's.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

FREQUENCY_SHARE = 0.05  # a larger change of frequency makes timings doubtful; governors step by more, noise is less
TEMPERATURE_K = 10.0  # after a larger rise a small board without a fan is soon throttled
SHORTEST_S = 0.2  # of CPU time between two states, for shares of it: twenty of Linux's ticks
OTHERS_SHARE = 0.1  # of the CPUs' time: one busy process on a board of four cores takes 0.25
STEAL_SHARE = 0.01
PRESSURE = 10.0  # percent of the last ten seconds in which a task waited for a CPU
PINNED = "performance"

_MEMORY = {"anonymous": "RssAnon", "peak": "VmHWM"}

#: Cooling devices that slow a processor: not fans, and not the light behind a display.
_SLOWS = re.compile(r"Processor|intel_powerclamp|(thermal-)?(cpufreq|cpuidle|idle|devfreq)-")
#: A Raspberry Pi's firmware: capped, throttled and at its soft limit now (bits 1 to 3), or short of voltage (bit 0).
_FIRMWARE, _FIRMWARE_NOW = "sys/devices/platform/soc*/soc*:firmware/get_throttled", 0xF


def board_state(root: str = "/") -> dict[str, Any]:
    """What the board shows now.

    ``cpu_mhz``, ``max_mhz`` and ``governor`` by CPU, for those that this process may use; ``temperature_c`` of the
    hottest zone; ``throttled``, whether anything slows its processors; ``throttle_count``, how often that was so, in
    all; ``pressure_cpu``, percent of the last ten seconds in which some task waited for a CPU; ``running``, the tasks
    that run or could, without this one; ``load`` of a minute; and ``cpu_s``, counters in seconds for `since`.
    """
    by_cpu: dict[str, dict[str, Any]] = {"cpu_mhz": {}, "max_mhz": {}, "governor": {}}
    cpus = sorted(os.sched_getaffinity(0))
    for cpu in cpus:
        folder = os.path.join(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq")
        by_cpu["cpu_mhz"][str(cpu)] = _thousandths(os.path.join(folder, "scaling_cur_freq"))  # Linux has kHz
        by_cpu["max_mhz"][str(cpu)] = _thousandths(os.path.join(folder, "cpuinfo_max_freq"))
        by_cpu["governor"][str(cpu)] = _text(os.path.join(folder, "scaling_governor")) or None
    temperatures = map(_thousandths, _found(root, "sys/class/thermal/thermal_zone*/temp"))
    state = {
        **{name: {cpu: value for cpu, value in values.items() if value is not None} for name, values in by_cpu.items()},
        "temperature_c": max((value for value in temperatures if value is not None), default=None),
        "throttled": _throttled(root),
        "throttle_count": _throttle_count(root, cpus),
        "pressure_cpu": _pressure(root),
        **_load(root),
        "cpu_s": cpu_seconds(cpus, root),
    }
    return {name: value for name, value in state.items() if value is not None and value != {}}


def since(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The state ``after``, with what happened since ``before``.

    ``others_cpu``: the share of the CPUs' time that other processes took; ``steal``: the share that the hypervisor gave
    to other machines. Both only where that time is at least `SHORTEST_S`. ``throttled`` also if it was so meanwhile.
    """
    found = dict(after)
    spent = {name: value - before.get("cpu_s", {}).get(name, value) for name, value in after.get("cpu_s", {}).items()}
    whole = spent.get("all", 0.0)
    if whole >= SHORTEST_S:
        found["others_cpu"] = round(min(max((spent["busy"] - spent["own"]) / whole, 0.0), 1.0), 4)
        found["steal"] = round(min(max(spent["steal"] / whole, 0.0), 1.0), 4)
    if after.get("throttle_count", 0) > before.get("throttle_count", after.get("throttle_count", 0)):
        found["throttled"] = True
    return found


def process_memory(root: str = "/") -> dict[str, int]:
    """Bytes of this process that no other has: ``anonymous`` now, and ``peak``, the most that it had with all files.

    From ``/proc/self/status`` (filesystems/proc.rst): RssAnon and VmHWM. A new child has the zygote's.
    """
    text = _text(os.path.join(root, "proc/self/status")) or ""
    found = {name: re.search(rf"^{field}:\s+([0-9]+) kB$", text, re.MULTILINE) for name, field in _MEMORY.items()}
    return {name: int(match.group(1)) << 10 for name, match in found.items() if match}


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Changes between two states that make timings doubtful; one line each."""
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


def disturbances(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What was wrong all the time, as the states before and `since` then show; one line each, with what to do."""
    found = []
    others, steal = after.get("others_cpu", 0.0), after.get("steal", 0.0)
    if others > OTHERS_SHARE:
        what = f"other processes took {others:.0%} of the CPUs' time during the measurement"
        found.append(f"{what}: wait until they are done, or lease a board that is idle")
    if steal > STEAL_SHARE:
        what = f"the hypervisor gave {steal:.0%} of the CPUs' time to other machines during the measurement"
        found.append(f"{what}: add repeats, or lease a board of your own")
    pressure = min(before.get("pressure_cpu", 0.0), after.get("pressure_cpu", 0.0))
    if pressure >= PRESSURE:
        what = f"tasks waited for a CPU {pressure:.0f} % of the time before and during the measurement"
        found.append(f"{what}: end what else runs there, or give the model fewer threads")
    if after.get("throttled"):
        found.append("the board throttles its processors: let it cool, add cooldown_s, or look at its power supply")
    return [*found, *_slow_cpus(after)]


def _slow_cpus(state: dict[str, Any]) -> Iterator[str]:
    for cpu, mhz in state.get("cpu_mhz", {}).items():
        most, governor = state.get("max_mhz", {}).get(cpu, mhz), state.get("governor", {}).get(cpu, PINNED)
        if governor != PINNED and mhz < (1 - FREQUENCY_SHARE) * most:
            what = f"CPU {cpu} was at {mhz:.0f} of {most:.0f} MHz under the governor {governor}"
            yield f"{what}: start the board's server with --pin-governor, or measure for longer (min_repeat_ms)"


def _throttled(root: str) -> bool | None:
    """Whether a cooling device or a Raspberry Pi's firmware slows a processor now; None if nothing says."""
    kinds = _found(root, "sys/class/thermal/cooling_device*/type")
    coolers = [os.path.dirname(kind) for kind in kinds if _SLOWS.match(_text(kind) or "")]
    states = [(_number(os.path.join(cooler, "cur_state")) or 0) > 0 for cooler in coolers]
    for path in _found(root, _FIRMWARE):
        with contextlib.suppress(ValueError):
            states.append(bool(int(_text(path) or "", 16) & _FIRMWARE_NOW))
    return any(states) if states else None


def _throttle_count(root: str, cpus: list[int]) -> int | None:
    """How often these CPUs, or the package that each is in, were throttled since the start; None if nothing counts."""
    counts = []
    for cpu in cpus:
        folder = os.path.join(root, f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle")
        counts += [_number(os.path.join(folder, f"{what}_throttle_count")) for what in ("core", "package")]
    known = [int(count) for count in counts if count is not None]
    return sum(known) if known else None


def _pressure(root: str) -> float | None:
    """The share of the last ten seconds in which some task waited for a CPU, in percent."""
    match = re.search(r"^some avg10=([0-9.]+)", _text(os.path.join(root, "proc/pressure/cpu")) or "", re.MULTILINE)
    with contextlib.suppress(ValueError):
        return float(match.group(1)) if match else None
    return None


def _load(root: str) -> dict[str, Any]:
    """``load`` of a minute, and ``running`` without the task that reads it."""
    fields = (_text(os.path.join(root, "proc/loadavg")) or "").split()
    with contextlib.suppress(ValueError, IndexError):
        return {"load": float(fields[0]), "running": max(int(fields[3].partition("/")[0]) - 1, 0)}
    return {}


def cpu_seconds(cpus: Sequence[int], root: str = "/") -> dict[str, float] | None:
    """Seconds of these CPUs since the start: ``all``, ``busy``, and stolen (``steal``); and this process's ``own``.

    The fields of a line are user, nice, system, idle, iowait, irq, softirq and steal; guests are in user.
    """
    wanted, tick = {f"cpu{cpu}" for cpu in cpus}, os.sysconf("SC_CLK_TCK")
    sums = [0] * 8
    for line in (_text(os.path.join(root, "proc/stat"), 1 << 20) or "").splitlines():
        fields = line.split()[:9]
        if len(fields) == 9 and fields[0] in wanted and all(field.isdecimal() for field in fields[1:]):
            sums = [total + int(field) for total, field in zip(sums, fields[1:])]
            wanted.remove(fields[0])
    if wanted or not any(sums):
        return None
    whole, steal = sum(sums), sums[7]
    busy = whole - steal - sums[3] - sums[4]
    own = sum(os.times()[:4])  # with the children that have ended
    return {"all": whole / tick, "busy": busy / tick, "steal": steal / tick, "own": round(own, 4)}


def _found(root: str, pattern: str) -> list[str]:
    return glob.glob(os.path.join(glob.escape(root), pattern))


def _text(path: str, most: int = 4096) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path) as stream:
        return stream.read(most).strip()
    return None


def _number(path: str) -> float | None:
    """The number in a file; None where there is none."""
    with contextlib.suppress(ValueError):
        value = float(_text(path) or "")
        return value if math.isfinite(value) else None
    return None


def _thousandths(path: str) -> float | None:
    """The number in a file, divided by 1000; None where there is none."""
    value = _number(path)
    return None if value is None else value / 1000
