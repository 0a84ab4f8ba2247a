"""The replicas that there are, by what they say of themselves in the engine: who is behind or missing, and from which
addresses they relay.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from rpcsys.link.address import address_text
from rpcsys.tracker.replicas.engine import ReplicaStatus

log = logging.getLogger(__name__)
MAX_ENDS = 600  # of the journal that are remembered: ten minutes of a busy leader
BEHIND_S = 5.0  # a replica that lacks an entry for so long is behind
MISSING_S = 3600.0  # a replica that has said nothing for so long is no longer missed: it was taken away
RESOLVE_AGAIN_S = 10.0  # the pause before a replica's name is looked up again that had no address


class ReplicaListing:
    """Made inside an event loop. ``begin``: runs a lookup; ``changed``: is called when a lookup has found addresses.

    ``others``: what replicas say, by address, this one, too; ``behind_s``: since when each lacks an entry, in seconds.
    """

    def __init__(self, begin: Callable[[Coroutine[Any, Any, None]], object], changed: Callable[[], None]) -> None:
        self.others: dict[str, ReplicaStatus] = {}
        self.behind_s: dict[str, float] = {}
        self._begin = begin
        self._changed = changed
        self._ends: deque[tuple[float, int]] = deque(maxlen=MAX_ENDS)  # of the journal, and when they were seen
        self._seen: dict[tuple[str, int], float] = {}  # when replicas were listed last, by address
        self._addresses: dict[str, tuple[str, ...]] = {}  # by host; none while it is looked up

    def note(self, replicas: Iterable[ReplicaStatus], through: int, now: float) -> None:
        """Take what the engine lists. ``through``: the last entry that this replica has."""
        latest = sorted(replicas, key=lambda other: other.since)  # one that was restarted has two
        self.others = {address_text(*other.address): other for other in latest}
        last = self.last(through)
        if not self._ends or last > self._ends[-1][1]:
            self._ends.append((now, last))
        self.behind_s = {
            address: next((now - at for at, end in self._ends if end > other.through), 0.0)
            for address, other in self.others.items()
        }
        self._seen.update(dict.fromkeys((other.address for other in latest), now))
        self._seen = {address: at for address, at in self._seen.items() if now - at < MISSING_S}
        hosts = {host for host, _ in self._seen}
        self._addresses = {host: found for host, found in self._addresses.items() if host in hosts}
        for host in hosts - self._addresses.keys():
            self._addresses[host] = ()
            self._begin(self._resolve(host))

    def last(self, through: int) -> int:
        """The last entry of the journal that any replica has."""
        return max([through, *(other.through for other in self.others.values())])

    def rows(self, through: int) -> list[dict[str, Any]]:
        """The replicas as plain JSON, by address."""
        last = self.last(through)
        return [
            {**vars(other), "address": address, "behind": max(0, last - other.through)}
            for address, other in sorted(self.others.items())
        ]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of all replicas' hosts."""
        return tuple(dict.fromkeys(address for each in self._addresses.values() for address in each))

    def line(self, leader: tuple[str, int], term: int) -> str:
        """The replicas in a line for people."""
        count = len(self.others)
        behind = sum(seconds > BEHIND_S for seconds in self.behind_s.values())
        missing = max(0, len(self._seen) - count)
        line = f"{count} tracker{'s' if count != 1 else ''}, {address_text(*leader)} leads (term {term})"
        return line + (f", {behind} behind" if behind else "") + (f", {missing} missing" if missing else "")

    async def _resolve(self, host: str) -> None:
        """Find the addresses of a replica, from which it relays."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            log.warning("the replica %s has no address here (%s): it cannot relay", host, error)
            await asyncio.sleep(RESOLVE_AGAIN_S)
            self._addresses.pop(host, None)
        else:
            if host in self._addresses:
                self._addresses[host] = tuple(str(entry[4][0]) for entry in found)
                self._changed()
