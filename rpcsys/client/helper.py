"""The thread that does what nobody waits for: started by the first `submit`, plain calls never pay for it."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Optional

from rpcsys.client.pending import call
from rpcsys.client.replies import TICK_S, Replies
from rpcsys.errors import RpcsysError

if TYPE_CHECKING:
    from rpcsys.client.channel import Channel

#: How long a call is held back for others to join it.
FLUSH_S = 0.0005
#: The same while batches fill by themselves: each look costs whoever submits a switch of threads.
BUSY_S = 0.002
#: How long replies may lie unread before this thread takes them.
_IDLE_S = 0.02
#: Looks without a call held back after which it goes back to sleep.
_QUIET_LOOKS = 40


class Helper:
    """Sends what is held back and not flushed, reads what nobody waits for in `result`, calls users' callbacks.

    Callbacks run in a thread of their own, which holds no lock of the session. While it is ``looking`` at what is held
    back, it need not be woken.
    """

    def __init__(self, channel: Channel, replies: Replies) -> None:
        self._channel = channel
        self._replies = replies
        self.looking = False
        self._alarm = threading.Event()
        self._callbacks: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self.running = False

    def start(self) -> None:
        """Begin, if it has not yet."""
        if not self.running:
            self.running = self._replies.watched = True
            threading.Thread(target=self._run, name="rpcsys-futures", daemon=True).start()

    def wake(self) -> None:
        """There is something to do, or to stop for."""
        if not self.looking:
            self._alarm.set()

    def call_back(self, callback: Callable[[Any], Any], what: Any) -> None:
        """Have ``callback`` called with ``what``."""
        if self._callbacks is None:
            self._callbacks = concurrent.futures.ThreadPoolExecutor(1, "rpcsys-callbacks")
        self._callbacks.submit(call, callback, what)

    def _run(self) -> None:
        replies = self._replies
        while replies.broken is None:
            if self._channel.held:
                self._look_after_held()
            self._alarm.wait(_IDLE_S if replies.awaited else TICK_S)
            self._alarm.clear()
            if (
                replies.awaited
                and not replies.read_lock.locked()
                and time.monotonic() - replies.last_read > _IDLE_S
            ):
                replies.drain()
                replies.enforce()

    def _look_after_held(self) -> None:
        """Flush batches that do not fill, for as long as there are any."""
        self.looking = True
        quiet, pause = 0, FLUSH_S
        while quiet < _QUIET_LOOKS:
            batches = self._channel.batches
            time.sleep(pause)
            quiet += 1
            pause = BUSY_S if self._channel.batches != batches else FLUSH_S
            if self._channel.held:
                quiet = 0
                if self._channel.batches == batches:
                    self._flush()
        self.looking = False
        if self._channel.held:  # added while this still looked as if it were looking
            self._alarm.set()

    def _flush(self) -> None:
        try:
            self._channel.flush()
        except RpcsysError:
            pass  # every call under way ends with it
