"""Peers of a lab that have not said yet who they are: how many are read at once, and which of them have to wait.

Nobody who is known waits for them. A network is an IPv4 address, or the first 64 bits of an IPv6 one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Protocol

from rpcsys.link.admission import network_of
from rpcsys.tracker.views.metrics import LabCounts
from rpcsys.wire.memory import give_back_memory

if TYPE_CHECKING:
    from rpcsys.link.tls import Tunnel

#: Peers that are read at once, in all and of one network; the others wait unread. Each takes up to 30 kB.
MAX_READ, MAX_READ_OF_NETWORK = 512, 64
CROWD = 64  # at once: when the last of so many is gone, their memory is returned
TURN = 16  # peers whose bytes one turn handles: a handshake takes as long as ten frames
#: After so many failures within that time, the new connections of a network are read so much later.
FAILURES, FAILURES_S, LATER_S = 20, 60.0, 1.0
MAX_NETWORKS = 4096  # whose failures are remembered


class Stranger(Protocol):
    """What is needed of a connection."""

    address: str

    def hold(self) -> None:
        """Read nothing more for now."""

    def read_on(self) -> None:
        """Read again."""


class Strangers:
    """The peers of a lab's tracker that are not known. ``heard``: those with bytes to handle."""

    def __init__(self, loop: asyncio.AbstractEventLoop, counts: LabCounts) -> None:
        self.heard: deque[Stranger] = deque()
        self._loop = loop
        self._counts = counts
        self._read: dict[Stranger, str] = {}  # with their networks
        self._of_network: Counter[str] = Counter()
        self._held: dict[str, deque[Stranger]] = {}  # by network, the one that had its turn last at the end
        self._failed: dict[str, deque[float]] = {}  # by network, the times of its last failures
        self._delayed: dict[Stranger, asyncio.TimerHandle] = {}
        self._crowd = 0  # the most that were read at once, since there was none

    def add(self, peer: Stranger) -> None:
        """Add a peer that has come: it is read at once, or when its turn comes."""
        network = network_of(peer.address)
        if self._fails(network):
            peer.hold()
            self._delayed[peer] = self._loop.call_later(LATER_S, self._add_late, peer, network)
        elif self._has_room(network):
            self._begin(peer, network)
        else:
            peer.hold()
            self._held.setdefault(network, deque()).append(peer)

    def remove(self, peer: Stranger) -> None:
        """Remove a peer that is known now, or gone. Another one may have its turn."""
        timer = self._delayed.pop(peer, None)
        if timer is not None:
            timer.cancel()
            return
        network = self._read.pop(peer, None)
        if network is None:
            self._remove_held(peer)
            return
        self._of_network[network] -= 1
        if not self._of_network[network]:
            del self._of_network[network]
        self._next()
        if not self._read:
            crowd, self._crowd = self._crowd, 0
            if crowd >= CROWD:
                self._loop.call_later(LATER_S, give_back_memory)

    def late(self, address: str) -> float:
        """How many seconds later a request of an address is read than others: its network has failed often."""
        return LATER_S if self._fails(network_of(address)) else 0.0

    def failed(self, address: str, why: str) -> None:
        """Count a peer that did not prove who it is."""
        self._counts.unauthorized[why] += 1
        network = network_of(address)
        times = self._failed.pop(network, None) or deque(maxlen=FAILURES)
        times.append(self._loop.time())
        self._failed[network] = times
        while len(self._failed) > MAX_NETWORKS:
            del self._failed[next(iter(self._failed))]

    def take(self) -> list[Stranger]:
        """Some of those with bytes to handle, those that were heard first."""
        return [self.heard.popleft() for _ in range(min(TURN, len(self.heard)))]

    def _fails(self, network: str) -> bool:
        times = self._failed.get(network)
        return times is not None and len(times) == FAILURES and self._loop.time() - times[0] < FAILURES_S

    def _has_room(self, network: str) -> bool:
        return len(self._read) < MAX_READ and self._of_network[network] < MAX_READ_OF_NETWORK

    def _begin(self, peer: Stranger, network: str) -> None:
        self._read[peer] = network
        self._crowd = max(self._crowd, len(self._read))
        self._of_network[network] += 1

    def _add_late(self, peer: Stranger, network: str) -> None:
        del self._delayed[peer]
        self._held.setdefault(network, deque()).append(peer)
        self._next()

    def _next(self) -> None:
        """Read the next peer that waits, of the network whose turn was longest ago."""
        network = next((network for network in self._held if self._has_room(network)), None)
        if network is None:
            return
        waiting = self._held.pop(network)
        peer = waiting.popleft()
        if waiting:
            self._held[network] = waiting
        self._begin(peer, network)
        peer.read_on()

    def _remove_held(self, peer: Stranger) -> None:
        network = network_of(peer.address)
        waiting = self._held.get(network)
        if waiting is not None and peer in waiting:
            waiting.remove(peer)
            if not waiting:
                del self._held[network]


class LabOfPeers(Protocol):
    """What a connection needs of the lab that its tracker serves."""

    counts: LabCounts
    strangers: Strangers

    @property
    def longest_hello(self) -> int:
        """The longest frame, in bytes, of one who has not said yet who he is."""

    def tunnel(self) -> Tunnel:
        """The tracker's end of a new TLS connection."""
