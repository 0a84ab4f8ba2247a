"""The calls of a session that uses several devices: each device has a thread of its own, and all work at once.

The thread that reads the socket enrolls each call in the queue of its device, in the order of the calls, and reads on.
A call to a graph on several devices has a thread of a small pool, and takes its turn on one device after the other. So
as many frames as there are stages are under way in a graph. `Watcher` checks their deadlines.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from queue import SimpleQueue
from typing import Callable, NamedTuple, Sequence

from rpcsys.errors import ProtocolError, RemoteArgumentError
from rpcsys.module import placement
from rpcsys.module.module import running_call
from rpcsys.server.session.calls import BoundCall
from rpcsys.server.session.incoming import WINDOW_CALLS, WINDOWS
from rpcsys.server.session.operations import Operations
from rpcsys.server.session.outgoing import Outgoing, error_frame
from rpcsys.server.session.watchdog import STOP_S, STOPPED, Stopping, grace_s
from rpcsys.stream import Ended
from rpcsys.wire.device_names import MAX_DEVICES
from rpcsys.wire.frames import Buffer, Frame

#: Threads for calls to graphs on several devices: a frame in each stage of a long pipeline, and some that wait.
MAX_THREADS = 8
ErrorOf = Callable[[Frame, BaseException], "list[Buffer]"]


class DeviceCall:
    """One call, from its frame to its answer."""

    def __init__(self, frame: Frame, bound: BoundCall, devices: Sequence[str]) -> None:
        self.frame = frame
        self.bound = bound
        self.devices = devices
        self.order = placement.new_order()
        self.turn = placement.queue(devices[0]).enroll(self.order)
        self.stops: list[Callable[[], None]] = []  # functions that stop it (`running_call`)
        self.began = False
        self.deadline = math.inf
        self.stopping: Stopping | None = None


class _Lane(NamedTuple):
    """Calls that run in the same threads, in order."""

    calls: SimpleQueue[DeviceCall]
    threads: list[threading.Thread]
    most: int  # threads


class DeviceCalls:
    """Runs the calls of one session's devices. `start` and `cancel` are for the thread that reads."""

    def __init__(
        self, calls: Operations, out: Outgoing, window_bytes: int,
        error_of: ErrorOf, end_process: Callable[..., None], wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self._calls = calls
        self._out = out
        self._window_bytes = window_bytes
        self._error_of = error_of  # the ERROR for what a call raised
        self._end_process = end_process
        self._wake = wake  # the watcher
        self._lock = threading.Lock()  # guards ``began`` of calls that wait
        self._under_way: dict[int, DeviceCall] = {}
        self._lanes: dict[str, _Lane] = {}

    def start(self, frame: Frame) -> bool:
        """Run a call in another thread; False if the thread that reads runs it.

        Raises `ProtocolError` for a client that exceeds its window.
        """
        try:
            devices = self._calls.devices_of(frame)
            if not devices:
                return False
            if self._lane_of(devices) not in self._lanes and len(self._lanes) >= MAX_DEVICES:
                raise RemoteArgumentError(f"a session uses at most {MAX_DEVICES} devices, and {devices[0]} is one more")
            call = DeviceCall(frame, self._calls.bound(frame), devices)
        except Exception as error:  # noqa: BLE001 - a value may be anything
            self._out.send(self._error_of(frame, error))
            return True
        self._check_window(frame)
        self._under_way[frame.call_id] = call
        self._wake()
        self._put(call)
        return True

    def cancel(self, frame: Frame) -> bool:
        """Handle a CANCEL; False if it is for none of these calls."""
        call = self._under_way.get(frame.call_id)
        if call is None:
            return False
        with self._lock:
            waits, call.began = not call.began, True
        if waits:
            self._forget(call)
            self._out.send(error_frame(frame.call_id, "Cancelled", "the call was cancelled before it began"))
        else:
            self._stop(call, "Cancelled", "the call was cancelled", grace_s(frame))
        return True

    def check(self) -> bool:
        """Enforce deadlines, and stop calls that are to end; called by the watcher. Whether any call is under way."""
        now = time.monotonic()
        for call in list(self._under_way.values()):
            if now >= call.deadline:
                call.deadline = math.inf
                limit_s = call.frame.deadline_ms / 1000
                self._stop(call, "DeadlineExceeded", f"the call was not done in its {limit_s:g} s")
            stopping = call.stopping
            if stopping is None:
                continue
            for stop in tuple(call.stops):
                stop()
            if now >= stopping.kill_at:
                self._end_call(call, stopping)
        return bool(self._under_way)

    def _check_window(self, frame: Frame) -> None:
        calls = [call.frame.parsed.weight for call in list(self._under_way.values())]
        too_large = calls and sum(calls) + frame.parsed.body_bytes > (WINDOWS + 1) * self._window_bytes
        if too_large or len(calls) >= WINDOWS * WINDOW_CALLS:
            window = f"{WINDOW_CALLS}, with {self._window_bytes} bytes of arguments"
            raise ProtocolError(f"more calls were sent than may be under way: {window}")

    @staticmethod
    def _lane_of(devices: Sequence[str]) -> str:
        return devices[0] if len(devices) == 1 else ""

    def _put(self, call: DeviceCall) -> None:
        """Give a call to the threads of its device, or to those for several devices."""
        name = self._lane_of(call.devices)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(SimpleQueue(), [], 1 if name else MAX_THREADS)
        lane.calls.put(call)
        if len(lane.threads) < min(lane.most, len(self._under_way)):
            work = functools.partial(self._work, lane.calls)
            lane.threads.append(threading.Thread(target=work, name=f"calls {name}".strip(), daemon=True))
            lane.threads[-1].start()

    def _work(self, calls: SimpleQueue[DeviceCall]) -> None:
        while True:
            call = calls.get()
            with self._lock:
                dropped, call.began = call.began, True
            if not dropped:
                with contextlib.suppress(Ended):  # the thread that reads notices it, too
                    self._out.send(self._run(call))
            del call  # or it would be held until the next call comes

    def _run(self, call: DeviceCall) -> list[Buffer]:
        """Run a call; the pieces of its answer."""
        frame, running_call.stops = call.frame, call.stops
        if frame.deadline_ms:
            call.deadline = time.monotonic() + frame.deadline_ms / 1000
        try:
            with placement.in_order(call.order, call.turn):
                result, took = placement.one_device(call.devices, call.bound.run, call.devices == (placement.HOST,))
            self._forget(call)
            return self._calls.packed(frame, call.bound, result, took)
        except BaseException as error:  # noqa: BLE001 - a user's function may raise anything
            self._forget(call)
            stopping = call.stopping
            if stopping is not None and isinstance(error, Exception):
                return error_frame(frame.call_id, stopping.kind, stopping.message + STOPPED)
            return self._error_of(frame, error)

    def _forget(self, call: DeviceCall) -> None:
        self._under_way.pop(call.frame.call_id, None)
        call.turn.leave()

    def _stop(self, call: DeviceCall, kind: str, message: str, grace: float = 0.0) -> None:
        """Have a call end: by its own means, or with the session's process if it does not within `STOP_S`."""
        kill_at = time.monotonic() + max(grace, STOP_S)
        if call.stopping is None or kill_at < call.stopping.kill_at:
            call.stopping = Stopping(call.order, kind, message, kill_at)
        self._wake()

    def _end_call(self, call: DeviceCall, stopping: Stopping) -> None:
        text = stopping.message + "; its process was ended, and the session with it"
        with contextlib.suppress(Ended):  # the client is gone
            self._out.send(error_frame(call.frame.call_id, stopping.kind, text), wait_s=1.0)
        self._end_process("ended", "SessionLost", text)
