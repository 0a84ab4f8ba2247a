"""A standby and leaders in a loop of their own, and peers that a test has speak to them.

Everything is on loopback. What the loop has is looked at inside it, by `Site.ask`.
"""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rpcsys import logs
from rpcsys.daemon.acceptor import Acceptor
from rpcsys.serve import bind
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.connection import PeerConnection
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.replicas.standby import Standby
from rpcsys.tracker.service import TrackerService
from rpcsys.tracker.store import HistoryStore
from tests.live.daemons import wait_until
from tests.live.probe import TRACKER_MAGIC, TrackerProbe

MAGIC = struct.pack("<i", TRACKER_MAGIC)
HELLO = [1, {"op": "hello", "version": "0", "user": "ann", "capabilities": ["replicas/1"]}]
OLD_HELLO = [1, {"op": "hello", "version": "0", "user": "ann"}]
SOON_S = 30.0
Found = TypeVar("Found")


class AtOnce:
    """A term whose journal has everything at once."""

    def __init__(self, term: int, folder: Path) -> None:
        self.term = term
        self.store = HistoryStore(folder, history_days=90)

    def note(self, *records: HistoryEntry) -> None:
        self.store.note(*records)

    def hold(self, connection: PeerConnection, data: bytes) -> bool:
        return False

    def turn_over(self) -> None:
        pass


class Leader:
    """A tracker that leads, in the loop of a `Site`."""

    def __init__(self, site: Site, config: TrackerConfig, term: int, port: int) -> None:
        self.site = site

        def start() -> None:
            handler = logging.StreamHandler(io.StringIO())
            handler.setFormatter(logs.Formatter("rpcsys-tracker", "text"))
            logging.getLogger().handlers = [
                handler
            ]  # a tracker is the only one of its process; `Site` keeps the others
            listener = bind("127.0.0.1", port, port + 1)
            self._folder = tempfile.TemporaryDirectory()
            state = Path(config.state_dir or self._folder.name)
            self._leading = AtOnce(term, state) if term else None
            self.service = TrackerService(config, self._leading)
            self.acceptor = Acceptor(listener, self.service.accept)

        site.ask(start)
        self.address = ("127.0.0.1", self.acceptor.port)

    def peers(self) -> list[str]:
        """The addresses of its peers."""
        return self.site.ask(lambda: [peer.address for peer in self.service.state.records.peers.values()])

    def stop(self) -> None:
        def stop() -> None:
            self.acceptor.close()
            self.service.close()
            if self._leading is not None:
                self._leading.store.close()
            self._folder.cleanup()

        self.site.ask(stop)


class Site:
    """A standby that accepts connections at ``address``, and the loop that it runs in."""

    def __init__(self, config: TrackerConfig) -> None:
        self.loop = asyncio.new_event_loop()
        self.problems: list[str] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(str(context)))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._leaders: list[Leader] = []
        self._probes: list[TrackerProbe] = []

        def start() -> None:
            self.standby = Standby(config)
            self.take: Callable[[socket.socket, Any], object] = self.standby.accept
            self.acceptor = Acceptor(bind("127.0.0.1", 0, 1), self._accepted)

        self._handlers = logging.getLogger().handlers
        self.ask(start)
        self.address = ("127.0.0.1", self.acceptor.port)

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        self.take(sock, address)

    def ask(self, look: Callable[[], Found]) -> Found:
        """Call a function inside the loop; its result."""

        async def call() -> Found:
            return look()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(SOON_S)

    def until(self, look: Callable[[], Any], what: str) -> Any:
        """Wait until a function returns a true value inside the loop."""
        return wait_until(lambda: self.ask(look), SOON_S, what)

    def leader(self, term: int = 0, port: int = 0, config: TrackerConfig | None = None) -> Leader:
        self._leaders.append(Leader(self, config or TrackerConfig(), term, port))
        return self._leaders[-1]

    def follow(self, leader: tuple[str, int] | None, term: int) -> None:
        self.ask(lambda: self.standby.follow(leader, term))

    def give_over(self, leader: Leader, term: int) -> None:
        """Have the standby's connections go to a tracker that leads in the same process."""

        def give() -> None:
            self.take = leader.service.accept
            self.standby.give_over(leader.address, term, leader.service.adopt)

        self.ask(give)

    def probe(self) -> TrackerProbe:
        """A peer of the standby, past the magic."""
        self._probes.append(TrackerProbe(self.address))
        return self._probes[-1]

    def lookout(self) -> tuple[TrackerProbe, dict[str, Any]]:
        """A peer that looks out for the leader, and how it was answered."""
        probe = self.probe()
        return probe, probe.ask(HELLO)

    def counts(self) -> tuple[int, int, int]:
        """How many look out, are relayed, and wait."""
        return self.ask(self.counts_now)

    def counts_now(self) -> tuple[int, int, int]:
        """The same, inside the loop."""
        standby = self.standby
        return len(standby.lookouts), len(standby.relays.pairs), len(standby.relays.waiting)

    def close(self) -> None:
        """Close it. AssertionError: something failed inside the loop, or is left."""
        for probe in self._probes:
            probe.close()
        for leader in self._leaders:
            leader.stop()

        def stop() -> None:
            self.acceptor.close()
            self.standby.close()

        self.ask(stop)
        standby = self.standby
        left = self.ask(lambda: (*standby.lookouts, *standby.relays.pairs, *standby.relays.waiting))
        kept = standby.relays.kept, [*standby.admission._counted.counts]
        asyncio.run_coroutine_threadsafe(_tasks_end(), self.loop).result(SOON_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SOON_S)
        self.loop.close()
        logging.getLogger().handlers = self._handlers
        assert self.problems == []
        assert (left, kept) == ((), (0, []))


class Script:
    """A listener at which a test itself is the leader."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(SOON_S)
        self.address = self.listener.getsockname()

    def accept(self) -> socket.socket:
        sock, _ = self.listener.accept()
        sock.settimeout(SOON_S)
        return sock

    def close(self) -> None:
        self.listener.close()


def raw(frame: bytes) -> bytes:
    """A frame of any bytes."""
    return struct.pack("<i", len(frame)) + frame


async def _tasks_end() -> None:
    """Wait for the tasks that were cancelled."""
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
