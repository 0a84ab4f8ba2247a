"""Heartbeats find servers that hang: their connections stay open.

The tracker sends one every `CHECK_S`. A server that has not answered after `MISSES` more checks is silent. Checks are
counted instead of seconds: after a pause of the tracker itself one check is due, and the answers are read first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rpcsys.tracker.entities import Peer
from rpcsys.tracker.events import Action, Send
from rpcsys.tracker.health import ServerHealth
from rpcsys.tracker.leases import Leases
from rpcsys.tracker.records import Records
from rpcsys.wire import control, outcomes
from rpcsys.wire.control import Answer

#: Seconds between two checks of a server. A heartbeat and its answer cost the tracker about 30 us: 15,000 servers take
#: a tenth of a core.
CHECK_S = 5.0
MISSES = 2  # missed checks until a server is silent: 10 s after the heartbeat, 10 to 15 s after it began to hang
TOGETHER_S = 0.1  # checks that are due within this time are made together, in one turn of the loop
#: How long a lease may stay unopened before the tracker ends it. The server ends it after 8 s itself; this is for a
#: lost message.
UNOPENED_S = 12.0
#: The fractional parts of its multiples are evenly spread, so servers that register together are checked apart.
_SPREAD = (math.sqrt(5) - 1) / 2
SILENT = f"it does not answer the tracker for {MISSES * CHECK_S:g} s or more: its server hangs, or is stopped"
ASKED = control.Keepalive(control.QUESTION).to_json()


@dataclass(eq=False)
class Heartbeats:
    """Sends heartbeats and handles their answers."""

    records: Records
    health: ServerHealth
    leases: Leases

    def watch(self, peer: Peer) -> None:
        """Begin to check a server that has registered."""
        if peer.keepalive:
            self._check_again(self.records.now + peer.conn * _SPREAD % 1 * CHECK_S, peer)

    def _check_again(self, due: float, peer: Peer) -> None:
        self.records.deadlines.set(("heartbeat", peer.conn), math.ceil(due / TOGETHER_S) * TOGETHER_S)

    def check(self, conn: int) -> list[Action]:
        """Check a server: send a heartbeat and end its unopened leases, or find it silent."""
        peer, now = self.records.peers.get(conn), self.records.now
        if peer is None or peer.server is None:
            return []
        self._check_again(now + CHECK_S, peer)
        peer.unanswered += 1
        unopened = [lease for lease in peer.serving.values() if not lease.opened]
        actions: list[Action] = []
        if peer.unanswered == 1:
            for lease in unopened:
                actions += self.leases.end(lease, outcomes.UNUSED) if now - lease.since >= UNOPENED_S else ()
            actions.append(Send(conn, ASKED))
        elif peer.unanswered == MISSES + 1:
            actions += self.health.answers(peer.name, SILENT)
            for lease in unopened:
                actions += self.leases.over(lease, "unused") if lease.reason else ()  # its end was under way
        return actions

    def answered(self, peer: Peer, message: Answer) -> list[Action]:
        """Note an answer of a server."""
        if message.ok and peer.heard < message.id <= peer.asked:
            peer.heard = message.id
        was_silent = peer.unanswered > MISSES
        peer.unanswered = 0
        return self.health.answers(peer.name, "") if was_silent else []
