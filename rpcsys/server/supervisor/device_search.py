"""Searches for this board's devices beside the loop: the server starts meanwhile, and serves TVM's clients."""

from __future__ import annotations

from collections.abc import Callable

from rpcsys.server.config import ServerConfig
from rpcsys.server.devices import board, search
from rpcsys.server.devices.describing import Devices
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import Loop

COLLECT_S = 0.2  # between two attempts to collect processes that have ended


class DeviceSearch:
    """One search, of all that ``config`` wants; ``needed``: whether there is a driver to ask.

    ``tell`` is called with what is known: at once, and again before `DevicesFound` is posted.
    """

    def __init__(self, loop: Loop, config: ServerConfig, tell: Callable[[Devices], object]) -> None:
        wanted = config.devices
        self._loop = loop
        self._tell = tell
        self._npus = wanted is None or board.NPU in wanted
        self._asked = search.questions(wanted, config.tvm_library, config.load_library)
        self._search: search.DriverSearch | None = None
        self.needed = bool(self._asked)
        tell(Devices() if self.needed else search.DriverSearch({}, self._npus).devices())

    def start(self) -> None:
        """Ask the drivers: `DevicesFound` follows within `search.LIMIT_S` seconds."""
        self._search = search.DriverSearch(self._asked, self._npus)
        self._loop.add(self._search.fileno(), self._advance)
        self._loop.call_at(self._loop.now() + search.LIMIT_S, self._give_up)
        self._advance()

    def _advance(self) -> None:
        if self._search is not None:
            self._search.advance()
            self._check(self._search)

    def _give_up(self) -> None:
        if self._search is not None:
            self._search.give_up()
            self._check(self._search)

    def _check(self, found: search.DriverSearch) -> None:
        if not found.over:
            return
        self._loop.call_at(None, self._give_up)
        self._loop.remove(found.fileno())
        found.close()
        devices = found.devices()
        self._tell(devices)
        self._loop.post(ev.DevicesFound, devices.names, tuple(found.problems))
        self._collect()

    def _collect(self) -> None:
        if self._search is not None and not self._search.collect():
            self._loop.call_at(self._loop.now() + COLLECT_S, self._collect)
        else:
            self._search = None

    def close(self) -> None:
        """End a search that is not over."""
        if self._search is not None:
            self._search.give_up()
