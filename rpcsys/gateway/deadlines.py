"""The deadlines of calls, and when the state has to be told the time next."""

from __future__ import annotations

import math

from rpcsys.gateway.calls import InferenceCall

#: A call ends at its deadline, or so many seconds later.
GRAIN_S = 0.01


class CallDeadlines:
    """The calls with deadlines, by the grain of time in which these are. A call that finishes is discarded at once.

    ``next_due``: when the state's `tick` has to be called at the latest.
    """

    def __init__(self) -> None:
        self.next_due = math.inf
        self._grains: dict[int, dict[InferenceCall, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._grains.values()))

    def wake_at(self, due: float) -> None:
        """Have `tick` called at ``due``, or earlier."""
        if due < self.next_due:
            self.next_due = due

    def add(self, call: InferenceCall) -> None:
        """Watch the deadline of a call that has one."""
        grain = _grain(call)
        self._grains.setdefault(grain, {})[call] = None
        self.wake_at(grain * GRAIN_S)

    def discard(self, call: InferenceCall) -> None:
        """Watch a call no more."""
        grain = _grain(call)
        calls = self._grains.get(grain)
        if calls is not None and call in calls:
            del calls[call]
            if not calls:
                del self._grains[grain]

    def overdue(self, now: float) -> list[InferenceCall]:
        """The calls past their deadlines, the earliest first."""
        late = sorted(grain for grain in self._grains if grain * GRAIN_S <= now)
        return [call for grain in late for call in self._grains[grain]]

    def restart(self) -> None:
        """Forget when the time has to be told, but for the deadlines."""
        self.next_due = min(self._grains, default=math.inf) * GRAIN_S


def _grain(call: InferenceCall) -> int:
    assert call.deadline is not None
    return math.ceil(call.deadline / GRAIN_S)
