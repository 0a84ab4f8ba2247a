"""What the proxy offers its tracker for servers that cannot do it themselves, as TVM's proxy does.

The tracker is told one match key for each parked stream, and asked every 2 s which of them it has not handed out. One that
was handed out and brought no client is replaced. TVM's protocol has no word to take an offer back, so when a parked
stream ends while its match key can still be handed out, the connection to the tracker is begun anew: what was offered on
the old one vanishes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rpcsys.proxy.events import Action, Offer, Pending, Present, Reconnect, TrackerUp

UNUSED_S = 5.0
"""How long a client may take from the tracker to its stream, as TVM's proxy has it."""

MAX_PRESENTED = 64 << 10
"""Characters of all keys that the tracker is told to be served here: its frames have a limit. What is beyond is offered
all the same.
"""

Rename = Callable[[int, str], None]


@dataclass
class Parked:
    """A stream to offer; ``taken_at``: when its match key was first seen to be handed out."""

    key: str
    name: str
    taken_at: float | None = None


class Offers:
    """The streams the tracker knows of, by number."""

    def __init__(self) -> None:
        self.up = False
        self.parked_streams: dict[int, Parked] = {}
        self._presented: set[str] = set()
        self._dead: set[str] = set()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offers) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.parked_streams)

    def parked(self, conn: int, key: str, name: str) -> list[Action]:
        """A stream waits for whom the tracker sends."""
        self.parked_streams[conn] = Parked(key, name)
        if not self.up:
            return []
        return [Offer(key, name), *self._present({key})]

    def taken(self, conn: int) -> None:
        """Its client is there."""
        self.parked_streams.pop(conn, None)

    def lost(self, conn: int) -> None:
        """It ended, or waited too long."""
        one = self.parked_streams.pop(conn, None)
        if one is not None and self.up:
            self._dead.add(one.name)

    def tracker_up(self, event: TrackerUp, rename: Rename) -> list[Action]:
        """Offer all, under new names: what was handed out before is void, but for clients on their way."""
        self.up = True
        self._presented.clear()
        self._dead.clear()
        late = [conn for conn, one in self.parked_streams.items() if one.taken_at is None]
        keys = {one.key for one in self.parked_streams.values()}
        return [*self._renew(late, event.fresh, rename), *self._present(keys)]

    def tracker_down(self) -> None:
        """Nothing is offered any more."""
        self.up = False

    def pending(self, event: Pending, rename: Rename) -> list[Action]:
        """Some match keys have not been handed out yet; the others have."""
        still = set(event.match_keys)
        unused = []
        for conn, one in self.parked_streams.items():
            if one.name in still:
                one.taken_at = None
            elif one.taken_at is None:
                one.taken_at = event.at
            elif event.at - one.taken_at > UNUSED_S:
                unused.append(conn)
        dead, self._dead = self._dead, set()
        if dead & still:
            return [Reconnect()]
        return self._renew(unused, event.fresh, rename)

    def _renew(self, conns: list[int], fresh: tuple[str, ...], rename: Rename) -> list[Action]:
        actions: list[Action] = []
        for conn, random in zip(conns, fresh, strict=False):
            one = self.parked_streams[conn]
            one.name, one.taken_at = f"{one.key}:{random}", None
            rename(conn, one.name)
            actions.append(Offer(one.key, one.name))
        return actions

    def _present(self, keys: set[str]) -> list[Action]:
        """The keys served, if the tracker has not heard of one of ``keys``."""
        new = sorted(keys - self._presented)
        room = MAX_PRESENTED - sum(map(len, self._presented))
        shown = []
        for key in new:
            if len(key) <= room:
                room -= len(key)
                shown.append(key)
        if not shown:
            return []
        self._presented.update(shown)
        return [Present(tuple(sorted(self._presented)))]
