"""Times several functions in turns, in an order that the client has drawn, and says what else the board did meanwhile.

The facts of each turn come from Linux: of other processes, from ``/proc/stat``; of the thread that calls, how long it
was ready to run and waited for a CPU, from its ``schedstat``. None stands for what a board does not show.
"""

from __future__ import annotations

import functools
import math
import os
import resource
import threading
import time
from typing import Any, Callable, NamedTuple, Sequence

from rpcsys.errors import RemoteArgumentError
from rpcsys.module.module import running_call
from rpcsys.server.session.board_state import board_state, cpu_seconds, since
from rpcsys.server.session.timing import MAX_NUMBER
from rpcsys.wire.checks import shown

MAX_TURNS = 10_000  # one head returns all figures of a turn, at most 80 bytes
MAX_TARGETS = 100
MAX_S = 3600.0
READ_S = 5e-4  # reading a file takes less; whoever loses a CPU has it back later than that
_TRIES = 10
_SCHEDSTAT = "/proc/thread-self/schedstat"


class Moment(NamedTuple):
    """What was used until now; in seconds."""

    at: float
    own: float  # CPU time of this process
    thread: float  # of these, this thread's
    busy: float | None  # time of the CPUs that it may use, that anybody used, or the machine's host
    switches: int  # of this process, involuntary


def moment(cpus: Sequence[int]) -> Moment:
    """The figures of now; ``cpus``: those that the process may use."""
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    own, thread = time.process_time(), time.thread_time()
    cpu_s = cpu_seconds(cpus)
    busy = None if cpu_s is None else cpu_s["busy"] + cpu_s["steal"]
    return Moment(time.perf_counter(), own, thread, busy, switches)


def waited_seconds(path: str = _SCHEDSTAT) -> float | None:
    """Seconds that this thread was ready to run, and waited for a CPU."""
    try:
        with open(path) as stream:
            return int(stream.read(200).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def time_turns(
    calls: Sequence[Callable[[], Any]], order: Sequence[Any], number: Sequence[Any], limit_s: Any
) -> dict[str, Any]:
    """Run the turns of ``order``, indexes into ``calls``, as many as begin within ``limit_s`` seconds.

    In each, one call is not timed: what the function before has left in caches and threads is over then. ``number[i]``
    calls follow, timed together. Returns lists with an item for each turn: ``seconds`` (mean of a call), ``own_cpu``
    (CPU seconds of this process), ``others_cpu`` (share of the CPUs' time that others took), ``waited`` (seconds that
    the calling thread waited for a CPU) and ``switches`` (involuntary, of this process); and ``board``, its state
    before and after. Raises `RemoteArgumentError`.
    """
    _check(len(calls), order, number, limit_s)
    cpus = sorted(os.sched_getaffinity(0))
    stopped = threading.Event()
    turns: list[tuple[Any, ...]] = []
    before, until = board_state(), time.perf_counter() + limit_s
    with running_call.stopped_by(stopped.set):
        for place in order:
            if stopped.is_set():
                raise RemoteArgumentError("the measurement was stopped")
            if time.perf_counter() >= until:
                break
            call = calls[place]
            call()
            began = moment(cpus)
            seconds, waited = _timed(call, number[place])
            turns.append((seconds, waited, *_facts(began, moment(cpus), len(cpus))))
    names = ("seconds", "waited", "own_cpu", "thread_cpu", "others_cpu", "switches")
    columns = zip(*turns) if turns else ([] for _ in names)
    figures = {name: list(column) for name, column in zip(names, columns)}
    return {**figures, "board": {"before": before, "after": since(before, board_state())}}


def _timed(call: Callable[[], Any], number: int) -> tuple[float, float | None]:
    """The mean seconds of a call, and the seconds that this thread waited for a CPU meanwhile."""
    before, start = _start()
    for _ in range(number):
        call()
    end = time.perf_counter()
    after = waited_seconds()
    if before is None or after is None:
        return (end - start) / number, None
    late = time.perf_counter() - end  # the thread may have lost its CPU behind the last call
    waited = after - before - (late if late > READ_S else 0.0)
    return (end - start) / number, round(min(max(waited, 0.0), end - start), 6)


def _start() -> tuple[float | None, float]:
    """How long this thread has waited for a CPU until now, and now; it has not lost its CPU in between."""
    for _ in range(_TRIES):
        begun = time.perf_counter()
        waited, now = waited_seconds(), time.perf_counter()
        if now - begun <= READ_S:
            break
    return waited, now


def _facts(before: Moment, after: Moment, cpus: int) -> tuple[Any, ...]:
    """CPU seconds of the process and of the thread, others' share, and switches, between two moments."""
    own = after.own - before.own
    others = None
    if before.busy is not None and after.busy is not None:
        share = (after.busy - before.busy - own) / ((after.at - before.at) * cpus)
        others = round(min(max(share, 0.0), 1.0), 4)
    return round(own, 6), round(after.thread - before.thread, 6), others, after.switches - before.switches


def _check(calls: int, order: Sequence[Any], number: Sequence[Any], limit_s: Any) -> None:
    if not 1 <= calls <= MAX_TARGETS:
        raise RemoteArgumentError(f"targets are 1 to {MAX_TARGETS} functions with their arguments, not {calls}")
    if len(order) > MAX_TURNS:
        raise RemoteArgumentError(f"order has at most {MAX_TURNS} turns, not {len(order)}")
    for place in order:
        if type(place) is not int or not 0 <= place < calls:
            raise RemoteArgumentError(f"order has places of targets, from 0 to {calls - 1}, not {shown(place)}")
    if len(number) != calls:
        raise RemoteArgumentError(f"number has one item for each of {calls} targets, not {len(number)}")
    for each in number:
        if type(each) is not int or not 1 <= each <= MAX_NUMBER:
            raise RemoteArgumentError(f"number has whole numbers from 1 to {MAX_NUMBER}, not {shown(each)}")
    if not 0 <= limit_s <= MAX_S or not math.isfinite(limit_s):
        raise RemoteArgumentError(f"limit_s must be from 0 to {MAX_S:g} seconds, not {shown(limit_s)}")


def bound(targets: Sequence[Any], resolve: Callable[[Any], Callable[..., Any]]) -> list[Callable[[], Any]]:
    """The functions of ``targets``, each ``[target, args]``, with their arguments. Raises `RemoteArgumentError`."""
    calls: list[Callable[[], Any]] = []
    for each in targets:
        if type(each) not in (list, tuple) or len(each) != 2 or type(each[1]) not in (list, tuple):
            raise RemoteArgumentError(f"a target is a list of a function and its arguments, not {shown(each)}")
        if type(each[0]) not in (str, int, list):
            raise RemoteArgumentError(f"a function is a name, a number or [number, name], not {shown(each[0])}")
        calls.append(functools.partial(resolve(each[0]), *each[1]))
    return calls
