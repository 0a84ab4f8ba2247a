"""Which call of a model host runs next, and which is turned away. Decisions only: the host holds a lock around them.

Calls of all clients wait in one hall. Who is served next is taken in turn from the clients that have calls there, so that
one that sends many at once does not keep the others waiting; a client's own calls begin in the order they were sent.

    offered ──> waiting ──taken──> running ──finished──> (answered)
       └─ the hall is full: Busy     └─ cancelled, overdue, client gone: answered at once, and told to stop

A call that runs and is given up keeps its thread until its function returns: nothing can end a thread from outside. It is
``abandoned`` meanwhile; another worker takes its place, for as many as `MAX_ABANDONED`, and one that stays so makes the host
a case for its successor.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional

from rpcsys.wire.frames import Frame

MAX_ABANDONED = 32
"""Calls that nobody waits for and that run in spite of it: above so many, they take the places of others."""


class Call:
    """One call of a client.

    Attributes
    ----------
    client : whose it is
    frame : what was sent; let go of when it is over
    due : when it must be done, in the desk's time; infinite for no limit
    state : ``waiting``, ``running``, or ``over``
    on_stop : what stops it while it runs, as far as its kind can be stopped
    abandoned_at : since when nobody waits for it, though it runs
    """

    __slots__ = ("abandoned_at", "client", "due", "frame", "on_stop", "state")

    def __init__(self, client: Any, frame: Frame, due: float = math.inf) -> None:
        self.client = client
        self.frame: Frame = frame
        self.due = due
        self.state = "waiting"
        self.on_stop: List[Callable[[], None]] = []
        self.abandoned_at: Optional[float] = None


class Desk:
    """The calls of one host: at most ``workers`` run, at most ``places`` wait, in ``places_bytes`` bytes of arguments.

    ``takes`` tells whether a client takes what it is sent: the calls of one that does not wait, so that it has no more answers
    waiting for it than there are workers, and take no places from others.
    """

    def __init__(
        self, workers: int, places: int, places_bytes: int, takes: Callable[[Any], bool] = lambda client: True
    ) -> None:
        self._takes = takes
        self.workers = workers
        self.places = places
        self._places_bytes = places_bytes
        self._hall: OrderedDict[Any, Deque[Call]] = OrderedDict()
        self._calls: Dict[Any, Dict[int, Call]] = {}
        self._timed = 0
        self.waiting = 0
        self.waiting_bytes = 0
        self.running = 0
        self.abandoned: List[Call] = []

    # -------------------------------------------------------------- a call's way

    def offer(self, call: Call) -> bool:
        """Take a call in; False where there is no place for it now. Raises KeyError for a number that is under way."""
        calls = self._calls.setdefault(call.client, {})
        if call.frame.call_id in calls:
            raise KeyError(call.frame.call_id)
        weight = call.frame.parsed.weight
        staying = self.waiting - max(self.free, 0)  # the others are about to be taken
        if staying >= self.places:
            staying -= sum(len(queue) for client, queue in self._hall.items() if not self._takes(client))
        full = staying >= self.places or self.waiting_bytes + weight > self._places_bytes
        if staying >= 0 and full:
            return False
        calls[call.frame.call_id] = call
        queue = self._hall.get(call.client)
        if queue is None:
            queue = self._hall[call.client] = deque()
        queue.append(call)
        self.waiting += 1
        self.waiting_bytes += weight
        self._timed += call.due != math.inf
        return True

    def adopt(self, call: Call) -> None:
        """A call runs already, which was begun past this desk."""
        self._calls.setdefault(call.client, {})[call.frame.call_id] = call
        call.state = "running"
        self.running += 1

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self.running or self.waiting)

    def take(self) -> Optional[Call]:
        """The call that runs next, running from now on; None while none waits that may, or every worker has one."""
        if not self.waiting or self.free <= 0:
            return None
        client = next(filter(self._takes, self._hall), None)
        if client is None:
            return None
        queue = self._hall.pop(client)
        call = queue.popleft()
        if queue:
            self._hall[client] = queue  # behind the others
        self._left_hall(call)
        call.state = "running"
        self.running += 1
        return call

    def finish(self, call: Call) -> bool:
        """A running call's function has returned; whether anybody waits for its answer."""
        self.running -= 1
        if call.abandoned_at is not None:
            self.abandoned.remove(call)
            return False
        self._forget(call)
        return True

    # -------------------------------------------------------------- giving calls up

    def cancel(self, client: Any, call_id: int, now: float) -> Optional[Call]:
        """Give up the call of that number, which is to be answered; None if it is none that is under way."""
        call = self._calls.get(client, {}).get(call_id)
        if call is not None:
            self._give_up(call, now)
        return call

    def overdue(self, now: float) -> List[Call]:
        """Give up the calls whose time is over, which are to be answered."""
        if not self._timed:
            return []
        late = [call for call in self._all() if now >= call.due]
        for call in late:
            self._give_up(call, now)
        return late

    def gone(self, client: Any, now: float) -> List[Call]:
        """A client is no more: give up what it has under way. Nobody is to be answered."""
        calls = list(self._calls.get(client, {}).values())
        for call in calls:
            self._give_up(call, now)
        self._calls.pop(client, None)
        return calls

    def _give_up(self, call: Call, now: float) -> None:
        """It is over for its client; one that runs is abandoned."""
        if call.state == "waiting":
            queue = self._hall[call.client]
            queue.remove(call)
            if not queue:
                del self._hall[call.client]
            self._left_hall(call)
        else:
            call.abandoned_at = now
            self.abandoned.append(call)
        self._forget(call)

    def _left_hall(self, call: Call) -> None:
        self.waiting -= 1
        self.waiting_bytes -= call.frame.parsed.weight

    def _forget(self, call: Call) -> None:
        call.state = "over"
        self._timed -= call.due != math.inf
        calls = self._calls[call.client]
        del calls[call.frame.call_id]
        if not calls:
            del self._calls[call.client]

    # -------------------------------------------------------------- asking

    def of(self, client: Any) -> int:
        """How many calls a client has under way."""
        return len(self._calls.get(client, ()))

    @property
    def free(self) -> int:
        """Calls that could begin now."""
        return self.workers - self.running + min(len(self.abandoned), MAX_ABANDONED)

    @property
    def live(self) -> int:
        """Calls whose clients wait for them."""
        return self.waiting + self.running - len(self.abandoned)

    def deadline(self) -> float:
        """When the next call is overdue; infinite for never."""
        return min((call.due for call in self._all()), default=math.inf) if self._timed else math.inf

    def _all(self) -> Iterator[Call]:
        return (call for calls in self._calls.values() for call in calls.values())
