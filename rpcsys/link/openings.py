"""Connections that have not said yet what they are for: how many there may be, and until when they have to say it."""

from __future__ import annotations

from collections import Counter
from typing import Counter as Counts
from typing import Dict, Generic, Hashable, List, Optional, Tuple, TypeVar

from rpcsys.link.admission import network_of

OPENING_S = 8.0  # longest time to a whole opening, which peers send at once. The documented bound is 10 s
EACH = 16  # of one network; those beyond have a moment only: a desk that opens many sessions has them all at once
MOMENT_S = 1.0

Conn = TypeVar("Conn", bound=Hashable)


class Openings(Generic[Conn]):
    """Connections, oldest first: at most ``most``; one more ends the oldest of the network that has the most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Dict[Conn, Tuple[float, str, str]] = {}
        self._of_network: Counts[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, conn: Conn) -> bool:
        return conn in self._open

    def add(self, conn: Conn, peer: str, now: float, *, named: bool = False) -> Optional[Conn]:
        """Add the connection of ``peer``, ``host:port``; the one that the caller has to end for it, if there is one.

        ``named``: it has said a name that is on offer.
        """
        ended = self._crowding() if len(self._open) >= self._most else None
        network = network_of(peer.rpartition(":")[0] or peer)
        seconds = OPENING_S if named or self._of_network[network] < EACH else MOMENT_S
        self._of_network[network] += 1
        self._open[conn] = now + seconds, network, peer
        return ended

    def remove(self, conn: Conn) -> Optional[str]:
        """Remove a connection; its peer, None for an unknown one."""
        if conn not in self._open:
            return None
        _, network, peer = self._open.pop(conn)
        self._of_network[network] -= 1
        if not self._of_network[network]:
            del self._of_network[network]
        return peer

    def late(self, now: float) -> List[Conn]:
        """Those whose time is over."""
        return [conn for conn, (until, _, _) in self._open.items() if now >= until]

    def all(self) -> List[Conn]:
        """All connections."""
        return list(self._open)

    def deadline(self) -> Optional[float]:
        """When the next one's time is over, None if there is none."""
        return min(until for until, _, _ in self._open.values()) if self._open else None

    def _crowding(self) -> Conn:
        crowd = max(self._of_network, key=self._of_network.__getitem__)
        return next(conn for conn, (_, network, _) in self._open.items() if network == crowd)
