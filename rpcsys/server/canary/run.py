"""The process of a canary: runs its work for a moment, and tells the supervisor how long one run of it takes.

The time is what a user would wait where nobody else computes: own processor time, and what a quota or the board itself
took. It is no minimum: a quota of 97 % leaves most runs untouched, and stops every twentieth for 3 ms.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any, Callable, Dict, List, NamedTuple

from rpcsys.errors import RpcsysError, one_line
from rpcsys.server.canary import workload
from rpcsys.server.canary.neighbours import Neighbours, Spent, fastest_cpu, spent
from rpcsys.server.canary.setting import BUILTIN
from rpcsys.server.sandbox import messages
from rpcsys.server.sandbox.messages import Job

#: Before the first timed run: a governor raises the clock within it, and a quota of Linux, which is one for 100 ms,
#: begins to be felt: a process that has just begun to compute has a whole one.
WARM_S = 0.12
TIMED_S = 0.3  # three periods of a quota
LEAST, MOST = 3, 1000  # runs that are timed
LONGEST_S = 20.0  # of all together; the supervisor kills it at `rpcsys.server.supervisor.canary_runs.RUN_S`
#: A run is disturbed if it waited for other processes for more than this share of its time,
WAITED = 0.05
#: or if others computed, on any CPU, for this share of it: they slow memory and caches. /proc/stat counts in steps of
#: 10 ms, 3 % of a run.
CROWDED = 0.25
_NICE = 19  # whoever else wants the processor has it at once


class Timed(NamedTuple):
    """``seconds``: the time of one run of the work; ``spent``: where the time of all runs together went."""

    seconds: float
    spent: Spent

    @property
    def disturbed(self) -> bool:
        """Whether other processes may have changed the time. They do not change what is waiting for a device."""
        wall = max(self.spent.wall, 1e-9)
        own = self.spent.cpu / max(wall - self.spent.others, 1e-9)
        return own * self.spent.others > WAITED * wall or own * self.spent.busy_elsewhere > CROWDED * wall

    @property
    def throttled(self) -> float:
        """The share of the time that a quota took."""
        return self.spent.throttled / max(self.spent.wall, 1e-9)


def serve(control: socket.socket, job: Job) -> str:
    """Run the canary that ``job`` names, and report it on ``control``; the outcome."""
    options = job.options
    with contextlib.suppress(OSError):  # what the system does not allow leaves it as a session is
        os.sched_setaffinity(0, {fastest_cpu(tuple(options["cpus"] or sorted(os.sched_getaffinity(0))))})
        os.nice(_NICE)
    try:
        work, name = workload.builtin() if options["canary"] == BUILTIN else workload.of_file(options["canary"])
        timed = measure(work)
    except Exception as error:  # noqa: BLE001 - a library may do anything when it is loaded or called
        why = one_line(error) if isinstance(error, RpcsysError) else f"{type(error).__name__}: {one_line(error)}"
        messages.send_json(control, unfit=why)
        return "closed"
    messages.send_json(control, **report(name, timed))
    return "closed"


def report(name: str, timed: Timed) -> Dict[str, Any]:
    """The fields of the message about a run."""
    return {"canary": name, "seconds": timed.seconds, "disturbed": timed.disturbed, "throttled": timed.throttled}


def measure(work: Callable[[], Any], warm_s: float = WARM_S, timed_s: float = TIMED_S) -> Timed:
    """Time ``work``, after a time that is not counted; at least `LEAST` runs, however long they take."""
    begin = time.perf_counter()
    work()
    while time.perf_counter() - begin < warm_s:
        work()
    neighbours = Neighbours()
    cpus: List[float] = []
    before, started, used = neighbours.read(), time.perf_counter(), time.process_time()
    while _wanted(len(cpus), time.perf_counter() - started, timed_s):
        at = time.process_time()
        work()
        cpus.append(time.process_time() - at)
    wall, cpu = time.perf_counter() - started, time.process_time() - used
    return timed_of(cpus, spent(wall, cpu, before, neighbours.read()))


def _wanted(runs: int, passed_s: float, timed_s: float) -> bool:
    """Whether another run is to be timed."""
    enough = runs >= LEAST and passed_s >= timed_s
    return not runs or not (enough or runs >= MOST or passed_s >= LONGEST_S)


def timed_of(cpus: List[float], where: Spent) -> Timed:
    """The time of one run from the processor time of each: its median, and each run's part of what stalled them.

    A median is not moved by an interrupt in a few runs; what stalls is counted, as it rarely hits the median.
    """
    return Timed(sorted(cpus)[len(cpus) // 2] + where.stalled / len(cpus), where)
