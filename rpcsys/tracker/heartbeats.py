"""Heartbeats: which servers still answer. The kernel keeps the connection of one that hangs as if nothing were wrong.

A server is asked every few seconds, and silent if it has not answered after `MISSES` more checks. These are counted,
and not seconds: a tracker that was itself stopped finds one check due, and hears what was answered meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rpcsys.tracker.entities import Peer
from rpcsys.tracker.events import Action, Send
from rpcsys.tracker.health import ServerHealth
from rpcsys.tracker.leases import Leases
from rpcsys.tracker.records import Records
from rpcsys.wire import control
from rpcsys.wire.control import Answer

#: Between two checks of a server. A question and its answer cost the tracker about 30 us: 15,000 servers take a tenth
#: of a core.
CHECK_S = 5.0
MISSES = 2  # checks in vain after which a server is silent: 10 s after it was asked, 10 to 15 s after it began to hang
TOGETHER_S = 0.1  # servers are checked together that are due within so long: one turn of the loop, not one for each
#: A lease that is not opened for so long is asked back. A server does that by itself after 8 s; this is for a message
#: that was lost.
UNOPENED_S = 12.0
#: Multiples of it, without their whole parts, are spread evenly: servers that came together are not checked together.
_SPREAD = (math.sqrt(5) - 1) / 2
SILENT = f"it does not answer the tracker for {MISSES * CHECK_S:g} s or more: its server hangs, or is stopped"
ASKED = control.Keepalive(control.QUESTION).to_json()


@dataclass(eq=False)
class Heartbeats:
    """Asks servers whether they live."""

    records: Records
    health: ServerHealth
    leases: Leases

    def watch(self, peer: Peer) -> None:
        """A server has registered."""
        if peer.keepalive:
            self._check_again(self.records.now + peer.conn * _SPREAD % 1 * CHECK_S, peer)

    def _check_again(self, due: float, peer: Peer) -> None:
        self.records.deadlines.set(("heartbeat", peer.conn), math.ceil(due / TOGETHER_S) * TOGETHER_S)

    def check(self, conn: int) -> list[Action]:
        """A server is to be asked, also for leases that should have been opened by now, or to have answered."""
        peer, now = self.records.peers.get(conn), self.records.now
        if peer is None or peer.server is None:
            return []
        self._check_again(now + CHECK_S, peer)
        peer.unanswered += 1
        unopened = [lease for lease in peer.serving.values() if not lease.opened]
        actions: list[Action] = []
        if peer.unanswered == 1:
            for lease in unopened:
                actions += self.leases.end(lease, control.UNUSED) if now - lease.since >= UNOPENED_S else ()
            actions.append(Send(conn, ASKED))
        elif peer.unanswered == MISSES + 1:
            actions += self.health.answers(peer.name, SILENT)
            for lease in unopened:
                actions += self.leases.over(lease, "unused") if lease.reason else ()  # it was to be ended
        return actions

    def answered(self, peer: Peer, message: Answer) -> list[Action]:
        """A server has answered a question."""
        if message.ok and peer.heard < message.id <= peer.asked:
            peer.heard = message.id
        was_silent = peer.unanswered > MISSES
        peer.unanswered = 0
        return self.health.answers(peer.name, "") if was_silent else []
