"""The calls of one model that wait: by priority, then clients in turn, then age."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator

from rpcsys.gateway.calls import InferenceCall, Others

#: The level of calls that name no priority: behind all that do.
_LAST = 1 << 64
_Level = OrderedDict[object, "deque[InferenceCall]"]


class CallTurns:
    """Waiting calls, in the order in which they are served. Clients with equal priority take turns.

    Calls that were under way already go ahead of all others (`again`).
    """

    def __init__(self) -> None:
        self._count = 0
        self._again: deque[InferenceCall] = deque()
        self._levels: dict[int, _Level] = {}  # none is empty; clients in turn, the next first
        self._order: list[int] = []  # the keys of the levels, the first to be served first

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[InferenceCall]:
        """The calls in the order in which they are served, if none is added."""
        yield from self._again
        for number in self._order:
            rounds = [iter(calls) for calls in self._levels[number].values()]
            while rounds:
                for calls in list(rounds):
                    call = next(calls, None)
                    if call is None:
                        rounds.remove(calls)
                    else:
                        yield call

    def add(self, call: InferenceCall) -> None:
        """A new call waits."""
        number = call.priority or _LAST
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = OrderedDict()
            insort(self._order, number)
        calls = level.get(call.client)
        if calls is None:
            calls = level[call.client] = deque()
        calls.append(call)
        self._count += 1

    def again(self, call: InferenceCall) -> None:
        """A call that was under way waits ahead of all others."""
        self._again.appendleft(call)
        self._count += 1

    def first(self) -> InferenceCall:
        """The call that is served next. There is one."""
        if self._again:
            return self._again[0]
        return next(iter(self._levels[self._order[0]].values()))[0]

    def take(self, call: InferenceCall) -> None:
        """``call`` waits no more, as it is served now: its client's turn is over."""
        self._remove(call, served=True)

    def remove(self, call: InferenceCall) -> None:
        """``call`` waits no more, as it has finished."""
        self._remove(call, served=False)

    def _remove(self, call: InferenceCall, *, served: bool) -> None:
        self._count -= 1
        if call.returned:
            self._again.remove(call)
            return
        number = call.priority or _LAST
        level = self._levels[number]
        calls = level[call.client]
        calls.remove(call)
        if not calls:
            del level[call.client]
            if not level:
                del self._levels[number]
                self._order.remove(number)
        elif served:
            level.move_to_end(call.client)

    def gather(self, others: Others, rows: int, size: int) -> list[InferenceCall]:
        """The next calls with these ``others``, of ``rows`` and ``size`` bytes at most in all. They still wait."""
        found: list[InferenceCall] = []
        for call in self:
            form = call.form
            if call.alone or form.rows > rows or form.template.body_bytes > size or form.others != others:
                continue
            found.append(call)
            rows -= form.rows
            size -= form.template.body_bytes
            if rows <= 0:
                break
        return found
