"""Results at the tracker's host, for all of a lab. A thread sends what is to be kept, so that no candidate waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from rpcsys.client import Tracker
from rpcsys.errors import NotSupported, RpcsysError, UsageError, one_line
from rpcsys.wire.results import MAX_RESULTS, can_be_kept

GATHER_S = 0.2  # how long results gather before they are sent: a kill loses no more
RETRY_S = 5.0  # between two attempts, while the tracker does not take them
MAX_PENDING = 10_000  # results that wait for the tracker; beyond, the oldest are dropped
CLOSE_S = 15.0  # for what waits when the runner is closed
_log = logging.getLogger("rpcsys.tuning")


class LabResults:
    """What ``tracker`` keeps, in the form of a `ResultStore`. For any number of threads.

    A tracker that does not answer is no error: nothing is known, and results wait for it. Raises `UsageError` for one
    that keeps no results.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._lock = threading.Lock()
        self._pending: dict[str, list[float]] = {}
        self._sender: threading.Thread | None = None
        self._closing = threading.Event()
        self._retry_at = 0.0
        self._troubled = False  # whether its last trouble was told
        self._unsupported: NotSupported | None = None

    def find(self, identities: Iterable[str]) -> dict[str, list[float]]:
        """The seconds of those that are kept, by identity."""
        self._check_supported()
        try:
            return self._tracker.find_results(identities)
        except RpcsysError as error:
            self._failed(error)
            self._check_supported()
            return {}

    def keep(self, identity: str, seconds: list[float], about: Mapping[str, Any]) -> None:
        """Have a result kept soon, in place of an earlier one. ``about`` stays here."""
        self._check_supported()
        if not can_be_kept(seconds):
            return
        with self._lock:
            self._pending.pop(identity, None)
            self._pending[identity] = seconds
            if len(self._pending) > MAX_PENDING:
                del self._pending[next(iter(self._pending))]
            if time.monotonic() >= self._retry_at and not self._closing.is_set():
                self._send_pending()

    def close(self) -> None:
        """Send what waits, for at most `CLOSE_S` seconds. A second call does nothing."""
        with self._lock:
            if not self._closing.is_set() and self._pending:
                self._send_pending()
            self._closing.set()
            sender = self._sender
        if sender is not None and sender is not threading.current_thread():
            sender.join(CLOSE_S)

    def _send_pending(self) -> None:
        """Start a thread that sends, if there is none. The caller has the lock."""
        if self._sender is None or not self._sender.is_alive():
            self._sender = threading.Thread(target=self._send, name="rpcsys-tuning-results", daemon=True)
            self._sender.start()

    def _send(self) -> None:
        while True:
            self._closing.wait(GATHER_S)
            with self._lock:
                some = dict(islice(self._pending.items(), MAX_RESULTS))
                if not some:
                    self._sender = None
                    return
            try:
                self._tracker.keep_results(some)
            except RpcsysError as error:
                with self._lock:
                    self._sender = None
                    self._retry_at = time.monotonic() + RETRY_S
                self._failed(error)
                return
            self._troubled = False
            with self._lock:
                for identity, seconds in some.items():
                    if self._pending.get(identity) is seconds:
                        del self._pending[identity]

    def _failed(self, error: RpcsysError) -> None:
        if isinstance(error, NotSupported):
            self._unsupported = error
        elif not self._troubled:
            self._troubled = True
            _log.warning("the tracker's results are not at hand (%s); candidates are measured", one_line(error))

    def _check_supported(self) -> None:
        if self._unsupported is not None:
            raise UsageError(str(self._unsupported))
