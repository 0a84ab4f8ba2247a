"""A proxy without sockets: who comes and goes, and what becomes of them, on a clock of the test's own."""

from __future__ import annotations

import json
from typing import Any

from rpcsys.proxy import events as ev
from rpcsys.proxy.state import State

START = 1000.0


class Scene:
    """Events go in through JSON, and so do actions on their way out, as if both had been logged."""

    def __init__(self, **options: Any) -> None:
        self.now = START
        started = ev.Started(self.now, **options)
        self.log: list[dict[str, Any]] = [ev.to_json(started)]
        self.state = State(started)
        self.pairs: list[tuple[int, int]] = []
        self.refused: dict[int, str] = {}
        self.reasons: dict[int, str] = {}
        self.offered: list[str] = []
        self.presented: list[tuple[str, ...]] = []
        self.reconnects = 0
        self._conns = 0
        self._randoms = 0

    def server(self, key: str = "rpi4", id: str = "", address: str = "10.0.0.7", offered: bool = False) -> int:
        return self._open("server", key, id, address, offered)

    def client(self, key: str = "rpi4", address: str = "10.0.0.5") -> int:
        return self._open("client", key, "", address, False)

    def leave(self, conn: int) -> None:
        self.apply(ev.Left(self.now, conn))

    def drain(self) -> None:
        self.apply(ev.Draining(self.now))

    def tracker_up(self) -> None:
        self.offered.clear()
        self.apply(ev.TrackerUp(self.now, self._fresh(len(self.state.offers))))

    def tracker_down(self) -> None:
        self.apply(ev.TrackerDown(self.now))

    def pending(self, *match_keys: str) -> None:
        """The tracker says what it has not handed out."""
        self.apply(ev.Pending(self.now, match_keys, self._fresh(len(self.state.offers))))

    def wait(self, seconds: float) -> None:
        """Time passes, with a tick at each deadline."""
        end = self.now + seconds
        while (due := self.state.next_deadline) is not None and due <= end:
            self.now = max(self.now, due)
            self.apply(ev.Tick(self.now))
        self.now = end

    def apply(self, event: ev.Event) -> None:
        plain = json.loads(json.dumps(ev.to_json(event)))
        self.log.append(plain)
        for action in self.state.apply(ev.from_json(plain)):
            assert ev.from_json(json.loads(json.dumps(ev.to_json(action)))) == action
            self._note(action)

    def replayed(self) -> State:
        return ev.replay(ev.from_json(plain) for plain in self.log)

    def _open(self, role: str, key: str, id: str, address: str, offered: bool) -> int:
        self._conns += 1
        fresh = self._fresh(1)
        self.apply(ev.Opened(self.now, self._conns, address, role, key, id, offered, fresh))
        return self._conns

    def _fresh(self, count: int) -> tuple[str, ...]:
        self._randoms += count
        return tuple(f"r{number}" for number in range(self._randoms - count, self._randoms))

    def _note(self, action: ev.Action) -> None:
        if isinstance(action, ev.Join):
            self.pairs.append((action.client, action.server))
        elif isinstance(action, ev.Refuse):
            assert action.conn not in self.refused
            self.refused[action.conn] = action.code
            self.reasons[action.conn] = action.reason
        elif isinstance(action, ev.Offer):
            self.offered.append(action.match_key)
        elif isinstance(action, ev.Present):
            self.presented.append(action.keys)
        else:
            self.reconnects += 1
