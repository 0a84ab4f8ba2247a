"""Members of a lab that the tracker lets use deployed modules, and their connections. Decisions only.

Each has said a secret inside TLS, which the tracker has told the server: it is for one module, or for deploying.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.deployments import Deployments
from rpcsys.server.supervisor.fronts import Fronts
from rpcsys.server.supervisor.records import EARLY_S, Use, earliest
from rpcsys.wire.pinned_keys import SERVE, parse

LONGEST_S = 3600.0  # that a secret is good for, whatever the tracker says
MOST = 8192  # secrets; beyond, the oldest is dropped
MAX_EARLY = 256  # clients that wait for the tracker's message; beyond, the oldest is refused
NOT_ADMITTED = "the tracker has not admitted it to this, or not lately: it is to ask the tracker again"


@dataclass(frozen=True)
class AdmittedUse:
    """What a secret is good for, and until when."""

    secret: str
    what: str
    modules: tuple[str, ...]
    member: str
    until: float

    @property
    def use(self) -> Use:
        return self.what, self.modules, self.member

    def allows(self, module: str | None) -> bool:
        """Whether it is for a client that calls a module, or one that deploys ("")."""
        return module in self.modules if self.what == SERVE and module else self.what != SERVE and module == ""


@dataclass
class EarlyClient:
    """A client whose secret is not known, until the tracker's message comes."""

    secured: ev.Secured
    peer: str
    until: float


class AdmittedMembers:
    """``connected``: the front's open connections, and what each was let in for; ``early``: clients that wait.

    ``unauthorized`` counts clients that are not let in.
    """

    def __init__(self, deployments: Deployments, fronts: Fronts) -> None:
        self.connected: dict[int, AdmittedUse] = {}
        self.early: dict[int, EarlyClient] = {}
        self.unauthorized: Counter[str] = Counter()
        self._records, self._deployments, self._fronts = deployments.records, deployments, fronts
        self._by_secret: dict[str, AdmittedUse] = {}

    def handlers(self) -> dict[type, Callable[[Any], list[do.Action]]]:
        return {ev.Admitted: self._admit, ev.Unadmitted: self._unadmit, ev.FrontClosed: self._front_closed}

    # Clients

    def arrived(self, secured: ev.Secured, peer: str) -> list[do.Action]:
        """Admit or refuse a client with a secret, or have it wait for the tracker's message about that."""
        use = self._find(secured.said)
        if use is not None:
            return self._let_in(secured, peer, use)
        self.early[secured.conn] = EarlyClient(secured, peer, self._records.now + EARLY_S)
        return [] if len(self.early) <= MAX_EARLY else self._refuse(next(iter(self.early)))

    def _let_in(self, secured: ev.Secured, peer: str, use: AdmittedUse) -> list[do.Action]:
        conn, module = secured.conn, secured.serve
        if not use.allows(module) or self._records.stopping:
            return self._refused(conn, peer)
        self.connected[conn] = use
        visits = self._deployments.visit(conn, peer, module or "", use.modules)
        line = f"{use.member or 'a client without a credential'} deploys here, from {peer}"
        return visits if module else [do.Log("info", line), *visits]

    def _refuse(self, conn: int) -> list[do.Action]:
        return self._refused(conn, self.early.pop(conn).peer)

    def _refused(self, conn: int, peer: str) -> list[do.Action]:
        self.unauthorized["credential"] += 1
        stranger = peer.rpartition(":")[0] or peer
        return [do.Log("warning", f"{peer} refused: {NOT_ADMITTED}", stranger=stranger), do.Refuse(conn, "mismatch")]

    def _find(self, said: str) -> AdmittedUse | None:
        """What the match key that a client has said is good for; the front has checked its public name.

        A table finds it, as there may be thousands: its hash has a seed of this process, so its time says nothing.
        """
        parts = parse(said)
        use = None if parts is None else self._by_secret.get(parts.secret)
        return use if use is not None and self._records.now < use.until else None

    def hung_up(self, conn: int) -> list[do.Action] | None:
        """Handle a client's hang-up; None if it does not wait here."""
        return None if self.early.pop(conn, None) is None else [do.Drop(conn)]

    def _front_closed(self, event: ev.FrontClosed) -> list[do.Action]:
        self.connected.pop(event.conn, None)
        return self.hung_up(event.conn) or []

    def stop(self) -> list[do.Action]:
        """Drop the clients that wait: the server stops, or the front is dead."""
        waited, self.early = self.early, {}
        return [do.Drop(conn) for conn in waited]

    def gone(self) -> list[do.Action]:
        """The front is dead, and with it all its connections."""
        self.connected.clear()
        return self.stop()

    # The tracker's word

    def _admit(self, event: ev.Admitted) -> list[do.Action]:
        """Note a secret: clients that were faster wait already."""
        until = event.now + min(event.until_s, LONGEST_S)
        self._drop_old()
        self._by_secret[event.secret] = AdmittedUse(event.secret, event.what, event.modules, event.member, until)
        if len(self._by_secret) > MOST:
            del self._by_secret[next(iter(self._by_secret))]
        actions: list[do.Action] = []
        for conn, client in list(self.early.items()):
            use = self._find(client.secured.said)
            if use is not None:
                del self.early[conn]
                actions += self._let_in(client.secured, client.peer, use)
        return actions

    def _unadmit(self, event: ev.Unadmitted) -> list[do.Action]:
        """Forget a use, and end the connections that came of it."""
        over = event.what, event.modules, event.member
        self._by_secret = {secret: use for secret, use in self._by_secret.items() if use.use != over}
        ended = {conn: use.secret for conn, use in self.connected.items() if use.use == over}
        for secret in dict.fromkeys(ended.values()):
            conns = tuple(conn for conn, said in ended.items() if said == secret)
            self._fronts.end(conns, f"{self._records.policy.front}-{secret}", event.why)
        who = event.member or "clients without a credential"
        line = f"connections of {who} to modules are ended ({len(ended)}): {event.why}"
        return [do.Log("info", line)] if ended else []

    def uses(self) -> tuple[Use, ...]:
        """What the tracker is to know after it was away: all uses that go on, or may."""
        self._drop_old()
        return tuple(dict.fromkeys(use.use for use in (*self.connected.values(), *self._by_secret.values())))

    def _drop_old(self) -> None:
        now = self._records.now
        self._by_secret = {secret: use for secret, use in self._by_secret.items() if now < use.until}

    def deadline(self) -> float | None:
        return earliest(client.until for client in self.early.values())

    def tick(self) -> list[do.Action]:
        """Refuse the clients whose wait is over."""
        late = [conn for conn, client in self.early.items() if self._records.now >= client.until]
        return [action for conn in late for action in self._refuse(conn)]
