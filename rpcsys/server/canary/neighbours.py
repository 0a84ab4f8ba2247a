"""What Linux says of a run that was timed: how long it waited, and whether for other processes or for its own limits.

A thread that neither computes nor sleeps waits in a run queue (``schedstat``): for neighbours, or because a CPU quota
of its cgroup is used up (``cpu.stat``). The first is others' doing. The second makes the board slower for every user.
"""

from __future__ import annotations

import contextlib
import os
from typing import List, NamedTuple, Optional, Tuple

from rpcsys.server.sandbox import cgroups

_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY = (1, 2, 3, 6, 7, 8)  # fields of a line of /proc/stat: user, nice, system, irq, softirq, steal
_V1, _V2 = ("throttled_time", 1e-9), ("throttled_usec", 1e-6)


class Counters(NamedTuple):
    """All in seconds since some past moment; None for what is not shown here."""

    waited: Optional[float]  # of this thread, in run queues; on some kernels with what a quota took
    throttled: float  # by quotas of its cgroups
    busy: Optional[float]  # of all CPUs together


class Neighbours:
    """Reads the counters of the calling thread, below ``root``."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._quotas = list(self._find_quotas())

    def read(self) -> Counters:
        """The counters now."""
        return Counters(self._waited(), sum(map(_throttled, self._quotas)), self._busy())

    def _find_quotas(self) -> List[str]:
        """The ``cpu.stat`` of this process's cgroup, and of those above it that can be seen: each may have a quota."""
        found: List[str] = []
        with contextlib.suppress(OSError):
            mine = cgroups.own(self._text("proc/self/cgroup"), self._text("proc/self/mountinfo"))
            for place in {mine[name] for name in ("cpu", "v2") if name in mine}:
                while os.path.isfile(file := os.path.join(self._root, place.lstrip("/"), "cpu.stat")):
                    found.append(file)
                    place = os.path.dirname(place)
        return found

    def _waited(self) -> Optional[float]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(self._text("proc/thread-self/schedstat").split()[1]) * 1e-9
        return None

    def _busy(self) -> Optional[float]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = self._text("proc/stat").split("\n", 1)[0].split()
            return sum(int(fields[place]) for place in _BUSY) / _TICKS
        return None

    def _text(self, path: str) -> str:
        with open(os.path.join(self._root, path), encoding="utf-8") as file:
            return file.read()


def _throttled(file: str) -> float:
    """Seconds that a quota has taken so far, by the text of a ``cpu.stat``."""
    with contextlib.suppress(OSError, ValueError):
        with open(file, encoding="utf-8") as lines:
            counts = dict(line.split() for line in lines)
        return sum(int(counts[name]) * unit for name, unit in (_V1, _V2) if name in counts)
    return 0.0


class Spent(NamedTuple):
    """Where the time of a run went, in seconds."""

    wall: float
    cpu: float  # its own computing
    others: float  # it waited for other processes
    throttled: float  # a quota was used up
    busy_elsewhere: float  # other processes computed meanwhile, on any CPU

    @property
    def stalled(self) -> float:
        """It neither computed nor waited for others: a quota, a stopped process, a device that it waited for."""
        return max(0.0, self.wall - self.cpu - self.others)


def spent(wall: float, cpu: float, before: Counters, after: Counters) -> Spent:
    """Divide the time of a run between two readings.

    Some kernels count throttled time as waiting too, so what a quota took is never counted as others' doing.
    """
    idle = max(0.0, wall - cpu)
    throttled = min(idle, max(0.0, after.throttled - before.throttled))
    known = before.busy is not None and after.busy is not None
    busy = max(0.0, (after.busy or 0.0) - (before.busy or 0.0) - cpu) if known else 0.0
    waited = _difference(before.waited, after.waited)
    others = min(idle - throttled, busy if waited is None else waited)
    return Spent(wall, cpu, max(0.0, others), throttled, busy)


def _difference(before: Optional[float], after: Optional[float]) -> Optional[float]:
    return None if before is None or after is None else max(0.0, after - before)


def fastest_cpu(allowed: Tuple[int, ...], root: str = "/") -> int:
    """One CPU of ``allowed``, which are not empty: of the fastest the last, as CPU 0 handles most interrupts.

    A run that moved between fast and slow processors would have two times.
    """
    return max(allowed, key=lambda cpu: (_speed(cpu, root), cpu))


def _speed(cpu: int, root: str) -> Tuple[int, int]:
    folder = os.path.join(root, f"sys/devices/system/cpu/cpu{cpu}")
    return _number(os.path.join(folder, "cpu_capacity")), _number(os.path.join(folder, "cpufreq/cpuinfo_max_freq"))


def _number(path: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        return int(file.read())
    return 0
