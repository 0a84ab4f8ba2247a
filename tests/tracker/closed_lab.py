"""The state of a tracker with a lab, and its members."""

from __future__ import annotations

from rpcsys.tracker import policy
from rpcsys.tracker.events import Authenticated, Close, Connected, Received, Send, TimePassed, TrackerStarted
from rpcsys.tracker.lab_view import LabView, Member
from rpcsys.tracker.state import TrackerState
from rpcsys.wire.membership import TO_TRACKER
from rpcsys.wire.tokens import HolderKind
from rpcsys.wire.tracker import parse_to_tracker

RULES = """
[[allow]]
who = ["ann", "bo"]
keys = ["rpi4", "free"]
modules = ["head"]
[[allow]]
who = ["bo"]
rights = ["see"]
[[allow]]
who = ["tvm"]
keys = ["rpi4"]
"""
NOW = 1_000_000.0


class ClosedLab:
    """A tracker with a lab, a board with two modules, and members."""

    def __init__(self) -> None:
        view = LabView(policy.parse(RULES, "basement"), "lab-host:9190", ())
        self.state = TrackerState(TrackerStarted(NOW - 100, "run", lab=view))
        self.heard: dict[int, list] = {}
        self.closed: list[int] = []
        self.now = NOW
        board = self.come("board-1", HolderKind.BOARD, "rpi4")
        self.say(board, {"op": "register", "id": 1, "key": "rpi4", "name": "board-1", "port": 9090})
        self.say(board, [3, "rpi4", [9090, "rpi4:1"], None])
        modules = [{"name": name, "version": "1"} for name in ("head", "secret")]
        self.say(board, {"op": "deployed", "id": 2, "modules": modules})

    def connect(self) -> int:
        """A peer of an allowed network, without a credential."""
        conn = len(self.heard) + 1
        self.heard[conn] = []
        self.apply(Connected(self.now, conn, f"10.0.0.{conn}", "10.0.0.1"))
        return conn

    def come(self, name: str, kind: HolderKind = HolderKind.PERSON, *keys: str) -> int:
        conn = self.connect()
        member = Member(name, kind, "aaaaaaaa", "", None, keys, (), 0.0, None, None, None)
        self.apply(Authenticated(self.now, conn, member))
        return conn

    def say(self, conn: int, message) -> list:
        self.apply(Received(self.now, conn, parse_to_tracker(message, TO_TRACKER)))
        heard, self.heard[conn] = self.heard[conn], []
        return heard

    def apply(self, event) -> None:
        for action in self.state.apply(event):
            if isinstance(action, Send):
                self.heard[action.conn].append(action.message)
            elif isinstance(action, Close):
                self.closed.append(action.conn)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.apply(TimePassed(self.now))
