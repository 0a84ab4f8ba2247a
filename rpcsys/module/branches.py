"""Runs the steps of one frame, each as soon as the steps that it needs have ended.

Where several can start, the first runs in the thread that made them ready, and each other one in a thread of its own.
"""

from __future__ import annotations

import threading
from typing import Callable, List, Optional, Sequence, Set

from rpcsys.module import placement
from rpcsys.module.module import running_call

Needs = Sequence[Set[int]]  # for each step, the numbers of the steps before it that it needs


def apart(needs: Needs, devices: Sequence[str]) -> bool:
    """Whether two steps on different devices need each other in no way, and so can run at the same time."""
    before: List[Set[int]] = []
    for number, direct in enumerate(needs):
        before.append(direct.union(*(before[each] for each in direct)))
        others = set(range(number)) - before[number]
        if any(devices[each] != devices[number] for each in others):
            return True
    return False


def run(needs: Needs, step: Callable[[int], None]) -> None:
    """Run ``step`` for each number. Raises what the first one that fails raises; no more steps begin then."""
    _Frame(needs, step).run()


class _Frame:
    def __init__(self, needs: Needs, step: Callable[[int], None]) -> None:
        self._step = step
        self._left = [set(each) for each in needs]
        self._lock = threading.Lock()
        self._threads = 0  # that run steps
        self._ended = threading.Event()
        self._error: Optional[BaseException] = None
        self._stops, self._order = running_call.stops, running_call.order

    def run(self) -> None:
        first = [number for number, needs in enumerate(self._left) if not needs]
        self._threads = max(1, len(first))
        self._go_on(first)
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def _go_on(self, ready: Sequence[int]) -> None:
        """Run steps in this thread until none is ready for it; start a thread for each other one."""
        mine = list(ready)
        while mine:
            for other in mine[1:]:
                threading.Thread(target=self._in_thread, args=([other],), daemon=True).start()
            mine = self._run_one(mine[0])
        with self._lock:
            self._threads -= 1
            if not self._threads:
                self._ended.set()

    def _in_thread(self, ready: List[int]) -> None:
        running_call.stops = self._stops
        with placement.in_order(self._order):
            self._go_on(ready)

    def _run_one(self, number: int) -> List[int]:
        """Run a step; return the steps that can start now, and count a thread for each but the first."""
        try:
            if self._error is None:
                self._step(number)
        except BaseException as error:  # noqa: BLE001 - it is raised by `run`
            self._error = self._error or error
        with self._lock:
            waiting = [each for each, needs in enumerate(self._left) if number in needs]
            for each in waiting:
                self._left[each].discard(number)
            ready = [each for each in waiting if not self._left[each]]
            self._threads += max(0, len(ready) - 1)
        return ready
