"""What a lab's tracker does besides: it lets members in, answers their questions, and tells the state what changed.

Work with the lab's files is done in its thread (:mod:`rpcsys.tracker.lab`), all else in the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import wrap_future
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from rpcsys.errors import ConfigError, Forbidden, Unauthorized
from rpcsys.link.tls import Tunnel
from rpcsys.tracker import events
from rpcsys.tracker.audit import AuditEntry
from rpcsys.tracker.connection import MAX_STRANGERS_FRAME, PeerConnection
from rpcsys.tracker.events import Allowed, HistoryEntry, Received, Refused
from rpcsys.tracker.lab import LabChanges, RunningLab
from rpcsys.tracker.lab_view import LabView, Member
from rpcsys.tracker.oidc import MAX_TOKEN, Issuer
from rpcsys.tracker.page_guard import PageGuard
from rpcsys.tracker.state import TrackerState
from rpcsys.tracker.strangers import Strangers
from rpcsys.tracker.views.metrics import LabCounts
from rpcsys.wire import control, tracker
from rpcsys.wire.membership import EVERYONE
from rpcsys.wire.tokens import HolderKind

_INVITED = "ask its keeper for an invitation, then type: rpcsys login"


log = logging.getLogger(__name__)


class RunningTracker(Protocol):
    """What is needed of the tracker's service."""

    loop: asyncio.AbstractEventLoop
    state: TrackerState
    connections: dict[int, PeerConnection]

    def now(self) -> float:
        """Seconds since 1970."""

    def perform(self, event: events.Event) -> None:
        """Give an event to the state and carry out its actions."""

    def flush(self) -> None:
        """Send what is unsent on all connections."""

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside all else."""


class LabService:
    """The lab of a running tracker. Raises `ConfigError`: its folder cannot be used, or its rules have a mistake."""

    def __init__(self, service: RunningTracker, folder: str | Path) -> None:
        self.counts = LabCounts()
        self.strangers = Strangers(service.loop, self.counts)
        self._service = service
        self._lab = RunningLab(folder)
        self._trail = self._lab.trail
        self._joining: set[PeerConnection] = set()  # those whose invitation or ID token is looked at
        self._known_issuer: Issuer | None = None

    @property
    def view(self) -> LabView:
        """What the state is to know of the lab."""
        return self._lab.view

    @property
    def longest_hello(self) -> int:
        """The longest frame, in bytes, of one who has not said yet who he is."""
        return MAX_STRANGERS_FRAME + (MAX_TOKEN if self._lab.access.oidc else 0)

    def tunnel(self) -> Tunnel:
        """The tracker's end of a new TLS connection."""
        return self._lab.tunnel()

    def guard(self) -> PageGuard:
        """Who sees the tracker's pages."""
        return PageGuard(self._lab, self.strangers, self._service.now)

    def close(self) -> None:
        """Wait for the work that has begun, and close the lab's files."""
        self._lab.close()

    # What the audit log has.

    def note(self, entry: HistoryEntry) -> None:
        """Record an entry of the history."""
        self._trail.note_history(entry)

    def note_asked(self, asked: Refused | Allowed) -> None:
        """Record an operation that was refused, or a right that was given."""
        self._trail.note_asked(asked)

    # Who is it?

    def refusal(self, connection: PeerConnection, message: Any) -> tuple[str, str]:
        """The error's name and the sentence for one that came in the clear; TVM's client is told of its own ways."""
        if not connection.refused:
            self.counts.unauthorized["clear"] += 1
        if isinstance(message, (tracker.TvmRequest, tracker.TvmSummary)):
            return "Forbidden", connection.refusal
        return "Unauthorized", self._lab.wanted

    def meets(self, connection: PeerConnection, message: tracker.ToTracker) -> bool:
        """Handle the first messages of a peer: a proxy names it, or it says who it is. Whether ``message`` is to be
        handled as those of a known peer; a peer that has a `refusal` then is to be told it.
        """
        service = self._service
        if isinstance(message, control.Via) and not connection.encrypted:
            service.perform(Received(service.now(), connection.number, message))
            peer = service.state.records.peers.get(connection.number)
            if peer is not None and peer.address != connection.address:
                connection.came_from(peer.address)
        elif not connection.encrypted:
            connection.refusal = self._lab.refusal(connection.address)
            if not connection.refusal:
                connection.accept()
                return True
        elif isinstance(message, tracker.Ping) and message.hello is not None:
            self._authenticate(connection, message)
        else:
            self._turn_away(connection, getattr(message, "id", None), self._lab.wanted)
        return False

    def _authenticate(self, connection: PeerConnection, ping: tracker.Ping) -> None:
        assert ping.hello is not None
        if ping.hello.sign_in:
            self._tell_issuer(connection)
            return
        if ping.hello.invitation is not None or ping.hello.id_token is not None:
            if connection not in self._joining:  # else a stranger could have the lab's thread do much at once
                self._joining.add(connection)
                self._service.begin(self._join(connection, ping))
            return
        try:
            member = self._lab.holder(ping.hello, self._service.now())
        except Unauthorized as problem:
            self._turn_away(connection, None, str(problem))
        else:
            self._let_in(connection, member, ping)

    async def _join(self, connection: PeerConnection, ping: tracker.Ping) -> None:
        """Let one in who has an invitation, or whom an issuer has named."""
        assert ping.hello is not None
        try:
            member = await self._new_member(ping.hello, connection.address)
            self._note_changes(await wrap_future(self._lab.look_again()))  # the state has its groups' rights at once
        except (Unauthorized, Forbidden, ConfigError) as problem:
            if isinstance(problem, ConfigError):
                stranger = {"stranger": connection.address}
                log.warning("%s could not join: %s", connection.address, problem, extra=stranger)
            self._turn_away(connection, None, str(problem))
        else:
            self._let_in(connection, member, ping)
        finally:
            self._joining.discard(connection)
        self._service.flush()

    async def _new_member(self, hello: control.Hello, came_from: str) -> Member:
        lab, now, digest = self._lab, self._service.now(), hello.hash or ""
        if hello.id_token is None:
            words = hello.invitation or ""
            return await wrap_future(lab.run(lambda: lab.membership.join(words, digest, now, came_from)))
        issuer = self._issuer()
        who = await issuer.check(hello.id_token, digest)
        lasts_s = issuer.settings.lasts_s
        return await wrap_future(lab.run(lambda: lab.membership.sign_in(who, digest, lasts_s, now, came_from)))

    def _issuer(self) -> Issuer:
        """The issuer in the rules. Raises `Unauthorized`: they have none."""
        settings = self._lab.access.oidc
        if settings is None:
            raise Unauthorized(f"nobody signs in to lab {self.view.name}: {_INVITED}")
        if self._known_issuer is None or self._known_issuer.settings != settings:
            self._known_issuer = Issuer(settings)
        return self._known_issuer

    def _tell_issuer(self, connection: PeerConnection) -> None:
        """Tell one who is not known where he signs in."""
        try:
            settings = self._issuer().settings
        except Unauthorized as problem:
            connection.send({"ok": False, "error": "Unauthorized", "message": str(problem)})
        else:
            where = {"issuer": settings.issuer, "client_id": settings.client_id}
            connection.send({"ok": True, "lab": self.view.name, "sign_in": where})
        connection.drop("it was told where to sign in", politely=True)

    def _let_in(self, connection: PeerConnection, member: Member, ping: tracker.Ping) -> None:
        service = self._service
        if connection.number in service.connections:
            connection.accept()
            self._trail.note(AuditEntry(service.now(), member.name, connection.address, "login"))
            service.perform(events.Authenticated(service.now(), connection.number, member))
            service.perform(Received(service.now(), connection.number, ping))

    def _turn_away(self, connection: PeerConnection, number: int | None, why: str) -> None:
        answer = {"ok": False, "error": "Unauthorized", "message": why}
        connection.send(answer if number is None else {**answer, "id": number})
        self.strangers.failed(connection.address, "credential")
        self._trail.note(AuditEntry(self._service.now(), "", connection.address, "login", "", why))
        connection.drop("it has no valid credential", politely=True)

    # Members' questions, and what changes.

    async def answer(self, connection: PeerConnection, message: control.Ask) -> None:
        """Answer a question about the lab's members, and act upon what it has changed."""
        service, lab = self._service, self._lab
        member, now = service.state.records.peers[connection.number].member, service.now()
        assert member is not None, "no other peer may ask"
        came_from = connection.address
        answer = await wrap_future(lab.run(lambda: lab.membership.answer(member, message, now, came_from)))
        if connection.number in service.connections:
            connection.send(answer.to_json())
        self.look_again()
        service.flush()

    def look_again(self) -> None:
        """Have the lab's files read again, and tell the state what has changed."""

        def done(found: Future[LabChanges]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the tracker ends
                self._service.loop.call_soon_threadsafe(self._note_changes, found.result())

        self._lab.look_again().add_done_callback(done)

    def _note_changes(self, found: LabChanges) -> None:
        service = self._service
        now, records = service.now(), service.state.records
        if found.view:
            service.perform(events.LabChanged(now, self.view))
        connected = self._lab.gone({peer.member for peer in records.peers.values() if peer.member}, now)
        # A TVM client holds its lease without a connection to the tracker.
        holding = self._lab.ended({lease.user for lease in records.leases.values() if not lease.reason}, now)
        for name in sorted({*connected, *holding}):
            service.perform(events.Revoked(now, name))
        if found.reconnect:
            self._have_reconnect(found.reconnect)
        service.flush()

    def _have_reconnect(self, names: frozenset[str]) -> None:
        """End the connections of boards and proxies, so that they learn of new pins or make new tokens."""
        for peer in [*self._service.state.records.peers.values()]:
            member = peer.member
            if member is not None and member.kind is not HolderKind.PERSON and {member.name, EVERYONE} & names:
                self._service.connections[peer.conn].drop("its lab's keys or its token change: it connects again")
