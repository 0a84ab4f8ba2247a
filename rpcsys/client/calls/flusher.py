"""Threads that do what nobody waits for. The first `submit` or callback starts them: plain calls never pay for them."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from typing import Any, Callable, Dict, Optional

from rpcsys.client.calls.receiver import TICK_S, Receiver
from rpcsys.errors import RpcsysError

#: How long a call is held back for others to join it.
FLUSH_S = 0.0005
#: The same while batches fill by themselves: each look costs whoever submits a switch of threads.
BUSY_S = 0.002
#: How long replies may lie unread before this thread takes them.
IDLE_S = 0.02
#: Looks without a call held back after which it goes back to sleep.
_QUIET_LOOKS = 40
_log = logging.getLogger("rpcsys.session")


class HeldCalls(Dict[int, bytes]):
    """Calls that wait for others to be sent with, by number. ``sent``: how many times they were sent."""

    sent = 0


class Flusher:
    """Sends what is held back and not flushed, reads what nobody waits for.

    ``looking``: it watches what is held back, and need not be woken for it. ``dozing``: nothing was to come, and it has
    to be told of the next call.
    """

    def __init__(self, receiver: Receiver, held: HeldCalls, flush: Callable[[], None]) -> None:
        self._receiver = receiver
        self._held = held
        self._flush = flush
        self.looking = False
        self.dozing = True
        self._running = False
        self._alarm = threading.Event()

    def wake(self) -> None:
        """There is something to do, or to stop for."""
        if not self.looking:
            self._alarm.set()

    def start(self) -> None:
        """Begin, if it has not yet, and look."""
        if not self._running:
            self._running = True
            threading.Thread(target=self._run, name="rpcsys-futures", daemon=True).start()
        self.wake()

    def _run(self) -> None:
        receiver = self._receiver
        while receiver.broken is None:
            if self._held:
                self._look_after_held()
            reads = receiver.reads
            self.dozing = True  # first: a call from now on wakes this thread
            self.dozing = not receiver.awaited
            woken = self._alarm.wait(TICK_S if self.dozing else IDLE_S)
            self.dozing = False
            if woken:
                self._alarm.clear()
            elif receiver.awaited and receiver.reads == reads and not receiver.lock.locked():
                receiver.drain()
                receiver.enforce()

    def _look_after_held(self) -> None:
        """Flush batches that do not fill, for as long as there are any."""
        self.looking = True
        quiet, pause = 0, FLUSH_S
        while quiet < _QUIET_LOOKS:
            sent = self._held.sent
            time.sleep(pause)
            quiet += 1
            pause = BUSY_S if self._held.sent != sent else FLUSH_S
            if self._held:
                quiet = 0
                if self._held.sent == sent:
                    self._flush_quietly()
        self.looking = False
        if self._held:  # added while this still looked as if it were looking
            self._alarm.set()

    def _flush_quietly(self) -> None:
        try:
            self._flush()
        except RpcsysError:
            pass  # every call under way ends with it


class Callbacks:
    """Calls users' functions, in a thread of their own that holds no lock of the session."""

    def __init__(self) -> None:
        self._thread: Optional[concurrent.futures.ThreadPoolExecutor] = None

    def call(self, callback: Callable[[Any], Any], what: Any) -> None:
        """Have ``callback`` called with ``what``."""
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "rpcsys-callbacks")
        self._thread.submit(call_user, callback, what)


def call_user(callback: Callable[[Any], Any], what: Any) -> None:
    """Call a user's function with ``what``; what it raises is logged, as `concurrent.futures` does."""
    try:
        callback(what)
    except Exception:  # noqa: BLE001 - whatever it is
        _log.exception("a callback of %r raised", what)
