"""Decides which call of a model host runs next, and which is refused. The host holds a lock around each decision.

Clients take turns; a client's own calls begin in the order in which they were sent.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Callable, Deque, Iterator, Optional

from rpcsys.wire.frames import Frame

MAX_ABANDONED = 32  # abandoned calls that free their workers; further ones keep them


@dataclass(slots=True, eq=False)
class Call:
    """One call of a client.

    ::

        offered ──> waiting ──taken──> running ──finished──> over (answered)
           └─ refused: Busy  └──────────────┴─ cancelled, overdue, client gone: over (answered at once)

    No thread can be killed: a call given up while it runs is abandoned, and another worker replaces its own until then.
    """

    client: Any
    frame: Frame
    due: float = math.inf  # its deadline, by the queue's clock; infinite for none
    state: str = "waiting"  # or "running", or "over"
    on_stop: list[Callable[[], None]] = field(default_factory=list)  # called to stop it while it runs, where possible
    abandoned_at: Optional[float] = None  # when it was abandoned


class CallQueue:
    """The calls of one host: at most ``workers`` run; at most ``capacity`` wait, with ``capacity_bytes`` of arguments.

    ``takes``: whether a client receives what it is sent. While it does not, its calls stay in the queue and do not
    count for ``capacity``. So at most as many answers wait for it as there are workers.
    """

    def __init__(
        self, workers: int, capacity: int, capacity_bytes: int, takes: Callable[[Any], bool] = lambda client: True
    ) -> None:
        self._takes = takes
        self.workers = workers
        self.capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._queues: OrderedDict[Any, Deque[Call]] = OrderedDict()  # of clients with waiting calls, the next first
        self._calls: dict[Any, dict[int, Call]] = {}  # under way, by client and number
        self._timed = 0  # calls under way with a deadline
        self.waiting = 0
        self.waiting_bytes = 0
        self.running = 0
        self.abandoned: list[Call] = []

    def offer(self, call: Call) -> bool:
        """Add a call; False if the queue is full. Raises KeyError if the client's call of that number is under way."""
        calls = self._calls.setdefault(call.client, {})
        if call.frame.call_id in calls:
            raise KeyError(call.frame.call_id)
        weight = call.frame.parsed.weight
        staying = self.waiting - max(self.free, 0)  # free workers take the others
        if staying >= self.capacity:
            staying -= sum(len(queue) for client, queue in self._queues.items() if not self._takes(client))
        full = staying >= self.capacity or self.waiting_bytes + weight > self._capacity_bytes
        if staying >= 0 and full:
            return False
        calls[call.frame.call_id] = call
        queue = self._queues.get(call.client)
        if queue is None:
            queue = self._queues[call.client] = deque()
        queue.append(call)
        self.waiting += 1
        self.waiting_bytes += weight
        self._timed += call.due != math.inf
        return True

    def adopt(self, call: Call) -> None:
        """Add a call that runs already, begun without this queue."""
        self._calls.setdefault(call.client, {})[call.frame.call_id] = call
        call.state = "running"
        self.running += 1

    def take(self) -> Optional[Call]:
        """Remove and return the call that runs next; None if no call may run, or no worker is free."""
        client = next(filter(self._takes, self._queues), None) if self.waiting and self.free > 0 else None
        if client is None:
            return None
        queue = self._queues.pop(client)
        call = queue.popleft()
        if queue:
            self._queues[client] = queue  # behind the others
        self._no_longer_waits(call)
        call.state = "running"
        self.running += 1
        return call

    def finish(self, call: Call) -> bool:
        """Note that a running call's function has returned; return whether its client waits for the answer."""
        self.running -= 1
        if call.abandoned_at is not None:
            self.abandoned.remove(call)
            return False
        self._over(call)
        return True

    def cancel(self, client: Any, call_id: int, now: float) -> Optional[Call]:
        """Give up the call of that number and return it, to be answered; None if it is not under way."""
        call = self._calls.get(client, {}).get(call_id)
        if call is not None:
            self._give_up(call, now)
        return call

    def overdue(self, now: float) -> list[Call]:
        """Give up the calls past their deadlines and return them, to be answered."""
        late = [call for call in self._all() if now >= call.due] if self._timed else []
        for call in late:
            self._give_up(call, now)
        return late

    def drop(self, client: Any, now: float) -> list[Call]:
        """Give up and return the calls of a client that is gone."""
        calls = list(self._calls.get(client, {}).values())
        for call in calls:
            self._give_up(call, now)
        self._calls.pop(client, None)
        return calls

    def _give_up(self, call: Call, now: float) -> None:
        """End a call for its client; a running one is abandoned."""
        if call.state == "waiting":
            queue = self._queues[call.client]
            queue.remove(call)
            if not queue:
                del self._queues[call.client]
            self._no_longer_waits(call)
        else:
            call.abandoned_at = now
            self.abandoned.append(call)
        self._over(call)

    def _no_longer_waits(self, call: Call) -> None:
        self.waiting -= 1
        self.waiting_bytes -= call.frame.parsed.weight

    def _over(self, call: Call) -> None:
        call.state = "over"
        self._timed -= call.due != math.inf
        calls = self._calls[call.client]
        del calls[call.frame.call_id]
        if not calls:
            del self._calls[call.client]

    def count(self, client: Any) -> int:
        """How many calls a client has under way."""
        return len(self._calls.get(client, ()))

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self.running or self.waiting)

    @property
    def free(self) -> int:
        """How many calls could begin now."""
        return self.workers - self.running + min(len(self.abandoned), MAX_ABANDONED)

    @property
    def live(self) -> int:
        """How many calls have clients that wait for them."""
        return self.waiting + self.running - len(self.abandoned)

    def deadline(self) -> float:
        """The earliest deadline; infinite if there is none."""
        return min((call.due for call in self._all()), default=math.inf) if self._timed else math.inf

    def _all(self) -> Iterator[Call]:
        return chain.from_iterable(calls.values() for calls in self._calls.values())
