"""The thread that sends submitted calls which fill no batch, and reads for futures without a waiting thread."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Callable, Dict

from rpcsys.client.calls.receiver import TICK_S, Receiver
from rpcsys.errors import RpcsysError

#: Seconds that a call is held for a batch.
FLUSH_S = 0.0005
#: The same while batches fill by themselves: each check costs the submitting thread a switch of threads.
BUSY_S = 0.002
#: Seconds that replies may lie unread before the flusher reads them.
UNREAD_S = 0.02
#: Checks without a held call after which the flusher sleeps again.
_QUIET_LOOKS = 40


class Flusher:
    """A thread that sends the calls that are ``held``, and reads the replies that no thread waits for.

    The first `submit` starts it: plain calls never pay for it.
    """

    def __init__(self, receiver: Receiver, held: Dict[int, bytes], flush: Callable[[], None]) -> None:
        self._receiver = receiver
        self._held = held
        self._flush = flush
        self.sent = 0  # how many batches were sent
        self.looking = False  # it watches the held calls, and needs no wake-up for them
        self.dozing = True  # it expects no frames, and needs a wake-up for the next call
        self._running = False
        # Released to wake the thread. An Event has a lock inside, which Ctrl-C in `set` can leave locked.
        self._alarm = threading.Lock()
        self._alarm.acquire()

    def wake(self) -> None:
        """Wake the thread for a held call, or to end."""
        if not self.looking:
            with contextlib.suppress(RuntimeError):  # it is released already
                self._alarm.release()

    def start(self) -> None:
        """Start the thread, if it does not run, and wake it."""
        if not self._running:
            self._running = True
            threading.Thread(target=self._run, name="rpcsys-futures", daemon=True).start()
        self.wake()

    def _run(self) -> None:
        receiver = self._receiver
        while receiver.broken is None:
            if self._held:
                self._look_after_held()
                continue  # a call, or the session's end, may have come before ``looking`` was cleared
            self.dozing, reads = True, receiver.reads  # first: a call from now on wakes this thread
            self.dozing = not receiver.awaited
            woken = self._alarm.acquire(timeout=TICK_S if self.dozing else UNREAD_S)
            self.dozing = False
            if not woken and receiver.awaited and receiver.reads == reads and not receiver.lock.locked():
                receiver.drain()
                receiver.enforce()

    def _look_after_held(self) -> None:
        """Flush batches that do not fill, as long as there are any."""
        self.looking = True
        quiet, pause = 0, FLUSH_S
        while quiet < _QUIET_LOOKS and self._receiver.broken is None:
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
