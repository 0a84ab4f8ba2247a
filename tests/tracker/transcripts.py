"""A tracker without sockets: its messages in and out as plain JSON, on a clock of the test's own."""

from __future__ import annotations

import json
from typing import Any

from rpcsys.tracker import events
from rpcsys.tracker.state import TrackerState
from rpcsys.wire.tracker import parse_to_tracker
from tests.tracker import event_json
from tests.tracker.event_json import replay

START = 1_000_000.0


class Scene:
    """A tracker's state. Events and actions pass through JSON, as if both had been logged."""

    def __init__(
        self,
        stop_key: str | None = None,
        limits: dict[str, float] | None = None,
        now: float = START,
        proxy_from: tuple[str, ...] = (),
        term: int = 0,
    ) -> None:
        self.now = now
        started = events.TrackerStarted(self.now, "run", stop_key, limits or {}, proxy_from, term=term)
        self.log: list[dict[str, Any]] = [event_json.to_json(started)]
        self.state = TrackerState(started)
        self.heard: dict[int, list[Any]] = {}
        self.closed: list[int] = []
        self.entries: list[events.HistoryEntry] = []
        self.past: list[events.HistoryEntry] = []  # of the runs before
        self.stopped = False
        self._conns = 0

    def connect(self, address: str = "10.0.0.5", local: str = "10.0.0.1") -> int:
        self._conns += 1
        self.heard[self._conns] = []
        self.apply(events.Connected(self.now, self._conns, address, local))
        return self._conns

    def say(self, conn: int, message: Any) -> list[Any]:
        """``conn`` sends the JSON ``message``; the messages that it has received by then."""
        self.apply(events.Received(self.now, conn, parse_to_tracker(message)))
        return self.hear(conn)

    def hear(self, conn: int) -> list[Any]:
        """The messages to ``conn`` since the last call."""
        heard, self.heard[conn] = self.heard[conn], []
        return heard

    def leave(self, conn: int) -> None:
        self.apply(events.Disconnected(self.now, conn))

    def wait(self, seconds: float) -> None:
        """Let time pass, with a tick at each deadline."""
        end = self.now + seconds
        while (due := self.state.next_deadline) is not None and due <= end:
            self.now = max(self.now, due)
            self.apply(events.TimePassed(self.now))
        self.now = end

    def apply(self, event: events.Event) -> None:
        plain = json.loads(json.dumps(event_json.to_json(event)))
        self.log.append(plain)
        for action in self.state.apply(event_json.from_json(plain)):
            assert event_json.from_json(json.loads(json.dumps(event_json.to_json(action)))) == action
            if isinstance(action, events.Send):
                self.heard[action.conn].append(action.message)
            elif isinstance(action, events.Close):
                self.closed.append(action.conn)
            elif isinstance(action, events.HistoryEntry):
                self.entries.append(action)
            else:
                self.stopped = True

    def replayed(self) -> TrackerState:
        return replay(event_json.from_json(plain) for plain in self.log)

    def recorded(self, kind: str) -> list[dict[str, Any]]:
        """Details of the records of a kind, in order."""
        return [dict(record.details) for record in self.entries if record.kind == kind]

    # Messages of clients and servers in most transcripts.

    def tvm_server(
        self, key: str = "rpi4", port: int = 9090, address: str = "10.0.0.7", custom: str | None = None
    ) -> int:
        conn = self.connect(address)
        assert self.say(conn, [5, {"key": f"server:{key}", "addr": [custom, port]}]) == [0]
        return conn

    def put(self, conn: int, match_key: str, port: Any = 9090, custom: str | None = None) -> list[Any]:
        return self.say(conn, [3, match_key.rpartition(":")[0], [port, match_key], custom])

    def server(
        self, key: str = "rpi4", name: str = "board", port: int | None = 9090, at: str = "10.0.0.8", **fields: Any
    ) -> int:
        conn = self.connect(at)
        self.say(conn, [1, {"op": "hello", "version": "0"}])
        (answer,) = self.ask(conn, "register", key=key, name=name, port=port, **fields)
        assert answer["ok"], answer
        return conn

    def client(self, user: str = "ann", address: str = "10.0.0.5") -> int:
        conn = self.connect(address)
        assert self.say(conn, [1, {"op": "hello", "version": "0", "user": user}])[0]["ok"]
        return conn

    def ask(self, conn: int, op: str, id: int = 1, **fields: Any) -> list[Any]:
        return self.say(conn, {"op": op, "id": id, **fields})

    def request(self, conn: int, id: int = 1, **fields: Any) -> dict[str, Any]:
        """``conn`` requests a device; the last message about it."""
        heard = self.ask(conn, "request", id, **{"key": "rpi4", **fields})
        return [message for message in heard if message.get("id") == id][-1]

    def granted(self, conn: int) -> list[str]:
        """The match keys that were granted to ``conn`` since the last `hear`."""
        found = []
        for message in self.hear(conn):
            if isinstance(message, list):
                found.append(message[1][2])
            elif "leases" in message:
                found += [lease["matchkey"] for lease in message["leases"]]
        return found

    def queue(self, key: str = "rpi4") -> tuple[int, int] | None:
        """(free, pending) of a key, None if the summary has no such key."""
        viewer = self.connect()
        ((code, summary),) = self.say(viewer, [6])
        assert code == 0
        self.leave(viewer)
        row = summary["queue_info"].get(key)
        return row and (row["free"], row["pending"])

    def summary(self) -> dict[str, Any]:
        viewer = self.connect()
        (answer,) = self.ask(viewer, "summary")
        self.leave(viewer)
        return answer["summary"]


def order(scene: Scene, server: int, clients: list[int], key: str = "rpi4") -> list[int]:
    """The indices of ``clients`` in the order in which they are served."""
    for client in clients:
        scene.hear(client)
    served = []
    for number in range(len(clients)):
        scene.put(server, f"{key}:order{number}")
        served += [index for index, client in enumerate(clients) if scene.granted(client)]
    return served
