"""Where functions run: the devices of a board, the turns on each, and arrays in their memory.

A device works on one call at a time. A call takes a *turn* on it: of those that wait, the one with the lowest order is
next. The order is the call's number, so the oldest frame of a pipeline goes first, and calls to one device keep their
order. Several devices work at the same time.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from rpcsys.errors import RemoteFunctionError
from rpcsys.module.module import running_call
from rpcsys.wire.device_names import CPU

HOST = str(CPU)
_RUNS = 4096  # the newest runs that are remembered

_orders = itertools.count(1)


class DeviceArray:
    """An array in a device's memory. Several threads may use it.

    Attributes
    ----------
    dtype, shape, device : its element type and shape, and the name of the device
    """

    dtype: str
    shape: Tuple[int, ...]
    device: str

    def __repr__(self) -> str:
        return f"<array {self.dtype} {self.shape} on {self.device}>"

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        raise NotImplementedError

    def to_host(self) -> Any:
        """A copy as a host's array. Raises `NativeError` if the device fails."""
        raise NotImplementedError

    def fill(self, data: memoryview) -> None:
        """Copy ``data``, its elements in C order, into it. Raises `NativeError` if the device fails."""
        raise NotImplementedError


class DeviceFigures:
    """What one device has done in this process; seconds and bytes since its start."""

    def __init__(self) -> None:
        self.calls = 0  # turns that have ended
        self.busy_s = 0.0  # seconds of these turns
        self.copied_in = self.copied_out = 0  # arrays copied from the host to it, and back
        self.bytes_in = self.bytes_out = 0


class DeviceRun(NamedTuple):
    """One turn that has ended: the device, the call's order, and `time.perf_counter` at its begin and end."""

    device: str
    order: int
    began: float
    ended: float


class Turn:
    """A call's place in the queue of a device; inside its ``with`` the device is the call's."""

    __slots__ = ("_began", "_ready", "cancelled", "granted", "left", "order", "queue")

    def __init__(self, queue: DeviceQueue, order: int) -> None:
        self.queue = queue
        self.order = order
        self.granted = self.cancelled = self.left = False
        self._ready: Optional[threading.Lock] = None  # while a thread waits here, released when it may go on
        self._began = 0.0

    def __lt__(self, other: Turn) -> bool:
        return self.order < other.order

    def __enter__(self) -> Turn:
        if not self.granted:
            self._wait()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *reason: object) -> None:
        self.queue.leave(self, DeviceRun(self.queue.device, self.order, self._began, time.perf_counter()))

    def leave(self) -> None:
        """Give the device, or the place in its queue, to the next call. A second call does nothing."""
        self.queue.leave(self)

    def grant(self) -> None:
        """Let the call have the device; for its queue."""
        self.granted = True
        if self._ready is not None and not self.cancelled:
            self._ready.release()

    def _wait(self) -> None:
        with self.queue.lock:
            if self.granted:
                return
            ready = self._ready = threading.Lock()
            ready.acquire()
        with running_call.stopped_by(self._cancel):
            ready.acquire()
        if self.cancelled:
            self.leave()
            raise RemoteFunctionError(f"the call was stopped while it waited for {self.queue.device}")

    def _cancel(self) -> None:
        with self.queue.lock:
            if self._ready is not None and not (self.granted or self.cancelled):
                self.cancelled = True
                self._ready.release()


class DeviceQueue:
    """The calls that wait for one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.figures = DeviceFigures()
        self.lock = threading.Lock()  # guards all of it, and its turns
        self._waiting: List[Turn] = []
        self._current: Optional[Turn] = None

    def enroll(self, order: int) -> Turn:
        """Queue a call; it has the device as soon as that is free and no call of a lower order waits."""
        turn = Turn(self, order)
        with self.lock:
            if self._current is None:
                self._current = turn
                turn.grant()
            else:
                heapq.heappush(self._waiting, turn)
        return turn

    def leave(self, turn: Turn, run: Optional[DeviceRun] = None) -> None:
        """As `Turn.leave`, after a ``run`` if the call had the device."""
        with self.lock:
            if run is not None:
                self.figures.calls += 1
                self.figures.busy_s += run.ended - run.began
                _runs.append(run)
            turn.left = True
            if self._current is not turn:
                return
            while self._waiting and self._waiting[0].left:
                heapq.heappop(self._waiting)
            self._current = heapq.heappop(self._waiting) if self._waiting else None
            if self._current is not None:
                self._current.grant()

    def copied_in(self, nbytes: int) -> None:
        """Count an array that was copied from the host to the device."""
        with self.lock:
            self.figures.copied_in += 1
            self.figures.bytes_in += nbytes

    def copied_out(self, nbytes: int) -> None:
        """Count an array that was copied from the device to the host."""
        with self.lock:
            self.figures.copied_out += 1
            self.figures.bytes_out += nbytes


_queues: Dict[str, DeviceQueue] = {}
_queues_lock = threading.Lock()
_runs: Deque[DeviceRun] = collections.deque(maxlen=_RUNS)


def queue(device: str) -> DeviceQueue:
    """The queue of the device with that name in this process."""
    found = _queues.get(device)
    if found is None:
        with _queues_lock:
            found = _queues.setdefault(device, DeviceQueue(device))
    return found


def new_order() -> int:
    """The order of a call that begins now."""
    return next(_orders)


@contextlib.contextmanager
def in_order(order: Optional[int] = None, turn: Optional[Turn] = None) -> Iterator[None]:
    """Inside the ``with``, this thread's call has that ``order``, or a new one, and its first ``turn`` if given."""
    before = running_call.order, running_call.turn
    running_call.order, running_call.turn = new_order() if order is None else order, turn
    try:
        yield
    finally:
        left = running_call.turn
        running_call.order, running_call.turn = before
        if left is not None:
            left.leave()


def turn_on(device: str) -> Turn:
    """This call's turn on a device: the one that it is enrolled in, or a new one."""
    turn: Optional[Turn] = running_call.turn
    if turn is not None and turn.queue.device == device:
        running_call.turn = None
        return turn
    return queue(device).enroll(new_order() if running_call.order is None else running_call.order)


def one_device(devices: Sequence[str], function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function`` in its turn on its one device; where it has none, or takes turns itself, at once."""
    if len(devices) != 1:
        return function(*args)
    with turn_on(devices[0]):
        return function(*args)


def figures() -> Dict[str, DeviceFigures]:
    """What each device that was used in this process has done."""
    return {device: each.figures for device, each in sorted(_queues.items())}


def runs() -> List[DeviceRun]:
    """The newest turns that have ended."""
    return list(_runs)


def on_host(value: Any) -> Any:
    """``value`` with each array that is in a device's memory copied to the host. Raises `NativeError`."""
    if isinstance(value, DeviceArray):
        copy = value.to_host()
        queue(value.device).copied_out(value.nbytes)
        return copy
    if type(value) in (list, tuple):
        return type(value)(on_host(item) for item in value)
    if type(value) is dict:
        return {key: on_host(item) for key, item in value.items()}
    return value
