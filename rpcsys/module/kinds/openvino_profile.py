"""Profiles of OpenVINO: its counters of operators, collected call by call.

Statements about OpenVINO here were found by running 2026.4 on its device CPU.
"""

from __future__ import annotations

import threading
from typing import Any, Iterable, List

from rpcsys.module.profiler import OperatorRun, check_count


class OperatorCounters:
    """What OpenVINO says of its operators after each call.

    ``averages``: whether it says means of all calls until then, as on the CPU, in whole microseconds.
    """

    def __init__(self, averages: bool) -> None:
        self._averages = averages
        self._noted: List[List[OperatorRun]] = []
        self._took: List[float] = []
        self._count = 0

    def note(self, told: Iterable[Any], took_s: float) -> None:
        """Take the counters after a call of so many seconds. Raises as `check_count`."""
        ran = [each for each in told if each.status.name == "EXECUTED"]
        thread = threading.get_native_id()
        self._took.append(took_s)
        self._noted.append(
            [OperatorRun(each.node_name, each.node_type, each.exec_type, "", thread, 0.0,
                         each.real_time.total_seconds() * 1e6) for each in ran]
        )  # fmt: skip
        self._count += len(ran)
        check_count(self._count)

    def runs(self, skip: int) -> List[List[OperatorRun]]:
        """The operators of each call behind the first ``skip``, in a row: it does not say when they begin.

        Of means, each of these calls has the part that it has of their time, without what the calls before took.
        """
        kept = self._noted[skip:]
        if self._averages and kept:
            earlier = {each.name: each.duration * skip for each in (self._noted[skip - 1] if skip else ())}
            total = [(each, each.duration * len(self._noted) - earlier.get(each.name, 0.0)) for each in kept[-1]]
            took = self._took[skip:]
            parts = [each / (sum(took) or 1.0) for each in took]
            kept = [[each._replace(duration=max(us, 0.0) * part) for each, us in total] for part in parts]
        return [_in_a_row(each) for each in kept]


def _in_a_row(operators: Iterable[OperatorRun]) -> List[OperatorRun]:
    placed, begin = [], 0.0
    for each in operators:
        placed.append(each._replace(begin=begin))
        begin += each.duration
    return placed
