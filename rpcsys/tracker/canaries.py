"""The canaries of the servers: which boards are slow, and what follows for their labels and offers.

A board that is slow is marked: its label `SPEED` says so, and requests can want it to be ``ok``. With ``canary_aside``
it is not offered meanwhile. Its canary runs on, so it comes back by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rpcsys.errors import ProtocolError
from rpcsys.tracker.board_speed import SLOW, SPEED, BoardSpeed, SpeedState
from rpcsys.tracker.entities import Peer
from rpcsys.tracker.events import Action, HistoryEntry
from rpcsys.tracker.health import ServerHealth
from rpcsys.tracker.labels import facts_of
from rpcsys.tracker.records import Records
from rpcsys.tracker.scheduler import Scheduler
from rpcsys.tracker.speed import SpeedTest
from rpcsys.wire import control

MAX_SPEEDS = 4096  # boards whose speed is known; beyond, one that has left is dropped, the first that was known first
PAUSE_S = 0.05  # reports of one server that follow each other faster are not counted: no canary runs so often


@dataclass(eq=False)
class Canaries:
    """Takes the reports of canaries; every method returns the actions that follow."""

    records: Records
    scheduler: Scheduler
    health: ServerHealth

    def ran(self, peer: Peer, message: control.CanaryRun) -> list[Action]:
        """Count a run of a server's canary."""
        done: list[Action] = [peer.done(message.id)]
        server, now = peer.server, self.records.now
        if server is None:
            return done
        known = self.records.speeds.get(peer.name)
        if known is not None and now < known.at + PAUSE_S:
            return done
        if message.problem:
            if known is not None:
                known.at, known.problem = now, message.problem
            return done
        return [*done, *self._count(peer, server.key, message)]

    def _count(self, peer: Peer, key: str, message: control.CanaryRun) -> list[Action]:
        now, name, speeds = self.records.now, peer.name, self.records.speeds
        board = speeds.get(name)
        dropped: list[Action] = []
        before, was = SpeedState.LEARNING, ""
        if board is not None:
            before, was = board.state, board.reason
        if board is None or (board.key, board.test.canary) != (key, message.canary):
            dropped = [] if board is not None else self._make_room()
            board = speeds[name] = BoardSpeed(key, SpeedTest(message.canary))
        board.at = now
        kept = False
        if message.disturbed or not message.seconds:
            board.disturbed += 1
        else:
            kept = board.take(now, message, self._siblings(name, board))
        if not kept and board.state is before:
            return dropped
        changed = board.state is not before or (board.state is SLOW and board.reason != was)
        return [*dropped, _record(now, name, board), *(self._changed(peer, before, board) if changed else ())]

    def _siblings(self, name: str, board: BoardSpeed) -> list[float]:
        """The levels of the boards of the same key that run the same canary."""
        if not board.test.fills:
            return []  # they are compared with each whole batch
        others = [other for named, other in self.records.speeds.items() if named != name and other.key == board.key]
        levels = (other.test.level for other in others if other.test.canary == board.test.canary)
        return [level for level in levels if level is not None]

    def _make_room(self) -> list[Action]:
        speeds = self.records.speeds
        if len(speeds) < MAX_SPEEDS:
            return []
        name = next((name for name in speeds if name not in self.records.server_names), next(iter(speeds)))
        del speeds[name]
        return [HistoryEntry(self.records.now, "unlearnt", {"server": name})]

    def _changed(self, peer: Peer, before: SpeedState, board: BoardSpeed) -> list[Action]:
        """What follows from another state: entries of the history, the label, and whether the board is offered."""
        actions: list[Action] = []
        if before is not board.state and SLOW in (before, board.state):
            slow = board.state is SLOW
            details = {"server": peer.name, **({"reason": board.reason} if slow else {})}
            actions.append(HistoryEntry(self.records.now, "slow" if slow else "well", details))
        if before is not board.state:
            actions += self._label(peer, board.state)
        if self.records.canary_aside:
            actions += self.health.slowed(peer.name, board.reason)
        return actions

    def _label(self, peer: Peer, state: SpeedState) -> list[Action]:
        """Change the label of a server, and with it which requests its offers fit."""
        server = peer.server
        if server is None:
            return []
        labels = labelled(server.labels, state)
        facts = facts_of(server.key, server.name, labels, server.loads, server.devices)
        shown = [offer for offer in peer.offers.values() if offer.free or offer.claimed]
        for offer in shown:
            self.records.withdraw(offer)
        for offer in peer.offers.values():
            if offer.key == server.key:
                offer.facts = facts
        self.records.describe(peer, replace(server, labels=labels, facts=facts))
        self.records.note_devices(peer.serves)
        actions = self.scheduler.weigh_all()
        for offer in shown:
            if offer.match_key in peer.offers and not (offer.free or offer.claimed):
                actions += self.scheduler.offer(offer)
        return actions

    def labels(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        """The labels of a server that registers: those that it gives, and the one that says its speed."""
        board = self.records.speeds.get(name)
        return labelled(given, SpeedState.LEARNING if board is None else board.state)

    def registered(self, name: str) -> list[Action]:
        """Set a slow board aside again that has come back, if that is to be."""
        board = self.records.speeds.get(name)
        aside = board is not None and board.state is SLOW and self.records.canary_aside
        return self.health.slowed(name, board.reason) if aside and board is not None else []

    def relearn(self, name: str) -> list[Action]:
        """Take a slow board as it is: an operator knows why it is slower, and it learns its own time anew."""
        board, conn = self.records.speeds.get(name), self.records.server_names.get(name)
        if board is None or board.state is not SLOW:
            return []
        fresh = self.records.speeds[name] = BoardSpeed(board.key, SpeedTest(board.test.canary))
        changed = [] if conn is None else self._changed(self.records.peers[conn], SLOW, fresh)
        return [_record(self.records.now, name, fresh), *changed]

    def restore(self, entry: HistoryEntry) -> list[Action]:
        """Restore what the last run knew of a server, which has not registered yet."""
        details = entry.details
        try:
            board = BoardSpeed.restored(
                details["key"], details["test"], details["reason"], over=details["over"], apart=details["apart"]
            )
        except ProtocolError:
            return []
        dropped = self._make_room()
        self.records.speeds[details["server"]] = board
        return dropped


def labelled(labels: Mapping[str, str], state: SpeedState) -> dict[str, str]:
    """Labels with the one that says the speed, which no server can give itself; without it while that is learnt."""
    others = {label: value for label, value in labels.items() if label != SPEED}
    return {**others, SPEED: state.value} if state.value else others


def _record(now: float, name: str, board: BoardSpeed) -> HistoryEntry:
    details = {
        "server": name,
        "key": board.key,
        "test": board.test.to_text(),
        "reason": board.reason,
        "over": board.over,
        "apart": board.apart,
    }
    return HistoryEntry(now, "canary", details)
