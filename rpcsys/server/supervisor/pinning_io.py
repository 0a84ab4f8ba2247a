"""Pins the governors of slots' CPUs in a thread: the kernel takes milliseconds to change one, and no session waits."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import FrozenSet, Optional

from rpcsys.server.sandbox import governors

CLOSE_S = 5.0  # longest wait for the kernel when the server ends
_Order = Optional[FrozenSet[int]]  # CPUs; None ends the thread

log = logging.getLogger("rpcsys.server")


class GovernorPins:
    """Carries out `PinGovernors`. ``cpus``: of each slot; ``folder``: the server's, for the note."""

    def __init__(self, folder: str, cpus: Sequence[Sequence[int]]) -> None:
        self._folder = folder
        self._cpus = cpus
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

    def warn(self) -> None:
        """Warn once, at the start, if there is nothing to pin, or it cannot be pinned."""
        why = governors.complaint({cpu for cpus in self._cpus for cpu in cpus})
        if why:
            log.warning("--pin-governor: %s", why)

    def pin(self, slots: tuple[int, ...]) -> None:
        """Have the CPUs of these slots, and no others, pinned soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rpcsys-governors", daemon=True)
            self._thread.start()
        self._orders.put(frozenset(cpu for slot in slots for cpu in self._cpus[slot]))

    def close(self) -> None:
        """Put back all governors. Does nothing where none was pinned."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (cpus := self._newest()) is not None:
            self._report(governors.pin(self._folder, cpus))
        self._report(governors.put_back(self._folder))

    def _newest(self) -> _Order:
        """Wait for an order; skip those that a later one replaces."""
        order = self._orders.get()
        while order is not None and not self._orders.empty():
            order = self._orders.get()
        return order

    def _report(self, problems: list[str]) -> None:
        """Log each problem once: a board that cannot be pinned has it in every session."""
        for problem in problems:
            if problem not in self._told:
                self._told.add(problem)
                log.warning("--pin-governor: %s", problem)
