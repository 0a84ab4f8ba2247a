"""Drives a proxy's state as a transcript: streams open and end, on the test's clock, without sockets."""

from __future__ import annotations

from typing import Any

from rpcsys.proxy import events as ev
from rpcsys.proxy.config import ProxyConfig
from rpcsys.proxy.state import ProxyState

START = 1000.0


class ProxyTranscript:
    """A `ProxyState` that gets events and records its actions. ``tracked``: the proxy has a tracker."""

    def __init__(self, *, tracked: bool = False, **options: Any) -> None:
        self.now = START
        self.config = ProxyConfig(tracker=("127.0.0.1", 9190) if tracked else None, **options)
        self.state = ProxyState(self.config)
        self.log: list[ev.Event | float] = []
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
        self.apply(ev.StreamEnded(conn))

    def drain(self) -> None:
        self.apply(ev.Draining())

    def tracker_up(self) -> None:
        self.offered.clear()
        self.apply(ev.TrackerUp(self._fresh(len(self.state.offers.streams))))

    def tracker_down(self) -> None:
        self.apply(ev.TrackerDown())

    def pending(self, *match_keys: str) -> None:
        """The tracker lists the match keys that it has not handed out."""
        self.apply(ev.KeysPending(self.now, match_keys, self._fresh(len(self.state.offers.streams))))

    def wait(self, seconds: float) -> None:
        """Let ``seconds`` pass, and expire streams at each deadline."""
        end = self.now + seconds
        while (due := self.state.next_deadline) is not None and due <= end:
            self.now = max(self.now, due)
            self.log.append(self.now)
            self._note_all(self.state.expire(self.now))
        self.now = end

    def apply(self, event: ev.Event) -> None:
        self.log.append(event)
        self._note_all(self.state.apply(event))

    def is_replayed(self) -> bool:
        """Whether a replay of the events gives the same state."""
        state = ProxyState(self.config)
        for event in self.log:
            state.expire(event) if isinstance(event, float) else state.apply(event)
        return vars(state) == vars(self.state)

    def _open(self, role: str, key: str, id: str, address: str, offered: bool) -> int:
        self._conns += 1
        fresh = self._fresh(1)
        self.apply(ev.StreamOpened(self.now, self._conns, address, role, key, id, offered, fresh))
        return self._conns

    def _fresh(self, count: int) -> tuple[str, ...]:
        self._randoms += count
        return tuple(f"r{number}" for number in range(self._randoms - count, self._randoms))

    def _note_all(self, actions: list[ev.Action]) -> None:
        for action in actions:
            self._note(action)

    def _note(self, action: ev.Action) -> None:
        if isinstance(action, ev.JoinStreams):
            self.pairs.append((action.client, action.server))
        elif isinstance(action, ev.RefuseStream):
            assert action.conn not in self.refused
            self.refused[action.conn] = action.code
            self.reasons[action.conn] = action.reason
        elif isinstance(action, ev.OfferStream):
            self.offered.append(action.match_key)
        elif isinstance(action, ev.PresentKeys):
            self.presented.append(action.keys)
        else:
            self.reconnects += 1
