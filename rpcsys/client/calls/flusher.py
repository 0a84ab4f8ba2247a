"""A thread that does what nobody waits for. The first `submit` starts it: plain calls never pay for it."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Callable, Dict

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


class Flusher:
    """Sends the calls that are ``held`` back and not flushed, reads what nobody waits for."""

    def __init__(self, receiver: Receiver, held: Dict[int, bytes], flush: Callable[[], None]) -> None:
        self._receiver = receiver
        self._held = held
        self._flush = flush
        self.sent = 0  # how many times what was held back has been sent
        self.looking = False  # it watches what is held back, and need not be woken for it
        self.dozing = True  # nothing was to come, and it has to be told of the next call
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
            sent = self.sent
            time.sleep(pause)
            quiet += 1
            pause = BUSY_S if self.sent != sent else FLUSH_S
            if self._held:
                quiet = 0
                if self.sent == sent:
                    with contextlib.suppress(RpcsysError):  # every call under way ends with it
                        self._flush()
        self.looking = False
        if self._held:  # added while this still looked as if it were looking
            self._alarm.set()
