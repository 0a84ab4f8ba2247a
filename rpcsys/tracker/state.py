"""The tracker's decisions: an event goes in, actions come out. The same events give the same actions: nothing depends
on a clock, a random number or the order of a hash table. A match key is granted once, and a request answered once.
A connection's offers and requests end with it, and what it can make the tracker remember is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rpcsys.tracker import permissions
from rpcsys.tracker.admissions import Admissions
from rpcsys.tracker.canaries import Canaries
from rpcsys.tracker.entities import Peer
from rpcsys.tracker.events import (
    Action,
    Authenticated,
    Connected,
    Disconnected,
    Event,
    LabChanged,
    Received,
    Refused,
    ReplicasChanged,
    Restored,
    Revoked,
    Send,
    SitesChanged,
    TimePassed,
    TrackerStarted,
)
from rpcsys.tracker.health import ServerHealth
from rpcsys.tracker.heartbeats import Heartbeats
from rpcsys.tracker.leases import Leases
from rpcsys.tracker.peers import Peers
from rpcsys.tracker.records import Records
from rpcsys.tracker.requests import Requests
from rpcsys.tracker.restore import Restore
from rpcsys.tracker.scheduler import Scheduler
from rpcsys.tracker.servers import Servers
from rpcsys.tracker.views.questions import Questions
from rpcsys.wire import control, membership, tracker
from rpcsys.wire.control import Answer

#: The fields of a message of which the first that is set says what it is about.
_ABOUT = ("name", "lease", "server", "key")


class TrackerState:
    """The tracker's state; hands each event to the part that decides. Two are equal when their records are."""

    def __init__(self, started: TrackerStarted) -> None:
        records = self.records = Records(started)
        scheduler = Scheduler(records)
        health = ServerHealth(records, scheduler)
        leases = Leases(records, health)
        heartbeats = Heartbeats(records, health, leases)
        requests = Requests(records, scheduler)
        peers = self._peers = Peers(records, scheduler, health, leases, requests)
        admissions = self._admissions = Admissions(records)
        canaries = Canaries(records, scheduler, health)
        servers = Servers(records, scheduler, health, leases, heartbeats, peers, admissions, canaries)
        restore = Restore(records, scheduler, health, canaries)
        questions = Questions(records)
        self._on_event: dict[type, Callable[[Any], list[Action]]] = {
            Connected: peers.connected,
            Disconnected: peers.disconnected,
            Authenticated: peers.authenticated,
            Revoked: peers.revoked,
            LabChanged: self._lab_changed,
            ReplicasChanged: peers.replicas_changed,
            SitesChanged: peers.sites_changed,
            Restored: restore.restored,
            TimePassed: self._tick,
        }
        self._on_message: dict[type, Callable[[Any, Any], list[Action]]] = {
            tracker.Ping: peers.ping,
            tracker.Stop: peers.stop,
            control.Via: peers.via,
            tracker.Put: servers.put,
            tracker.GetPending: servers.get_pending,
            tracker.UpdateInfo: servers.update_info,
            control.Register: servers.register,
            control.Health: servers.examined,
            control.CanaryRun: canaries.ran,
            control.Drain: servers.drain,
            control.Enable: servers.enable,
            control.Deployed: servers.deployed,
            Answer: heartbeats.answered,
            tracker.TvmRequest: requests.tvm_request,
            control.Request: requests.request,
            control.Cancel: requests.cancel,
            control.LeaseStarted: leases.lease_started,
            control.LeaseEnded: leases.lease_ended,
            control.Release: leases.release,
            control.Renew: leases.renew,
            control.EndLease: leases.end_lease,
            tracker.TvmSummary: questions.tvm_summary,
            control.Summary: questions.summary,
            control.Why: questions.why,
            control.Resolve: admissions.resolve,
            control.AskAdmission: admissions.to_deploy,
            control.History: questions.unsupported,
            control.Usage: questions.unsupported,
            **dict.fromkeys(membership.MESSAGES, questions.no_lab),
        }
        self._on_deadline: dict[str, Callable[..., list[Action]]] = {
            "timeout": requests.timed_out,
            "unknown": requests.still_unknown,
            "age": requests.age,
            "positions": requests.tell_positions,
            "ticket": requests.lose_place,
            "unheard": records.forget_unheard,
            "record": requests.record_waits,
            "rest": scheduler.rest,
            "wake": scheduler.wake,
            "settle": scheduler.settle,
            "away": leases.away,
            "trial": health.trial,
            "heartbeat": heartbeats.check,
            "forget": self._forget,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrackerState) and self.records == other.records

    __hash__ = None  # type: ignore[assignment]

    @property
    def next_deadline(self) -> float | None:
        """When the next `TimePassed` is due, None if nothing is."""
        return self.records.deadlines.next

    def apply(self, event: Event) -> list[Action]:
        """Apply an event; the actions that follow, in order."""
        self.records.now = event.at
        if type(event) is not Received:
            return self._on_event[type(event)](event)
        peer = self.records.peers.get(event.conn)
        if peer is None:
            return []
        kind = type(event.message)
        refused = None if self.records.lab is None else self.refused(peer, event.message)
        actions: list[Action] = [*refused] if refused else self._on_message[kind](peer, event.message)
        if peer.fresh:
            peer.fresh = kind is control.Via
        return actions

    def refused(self, peer: Peer, message: Any) -> tuple[Send, Refused] | None:
        """The refusal of a message that the peer may not send, for it and for the audit log; None if it may."""
        why = permissions.refusal(self.records, peer, message)
        if not why:
            return None
        number = getattr(message, "id", None)
        if number is not None:
            refusal = peer.refuse(number, why, "Forbidden" if peer.member else "Unauthorized")
        elif isinstance(message, (tracker.TvmRequest, tracker.TvmSummary)):
            refusal = Send(peer.conn, [tracker.FAIL, why])
        else:
            refusal = Send(peer.conn, tracker.FAIL)
        on = next((str(value) for name in _ABOUT if (value := getattr(message, name, None))), "")
        op = getattr(message, "op", "") or type(message).__name__
        return refusal, Refused(self.records.now, peer.who, peer.address, op, on, why)

    def _lab_changed(self, event: LabChanged) -> list[Action]:
        self.records.lab = event.lab
        return [*self._peers.lab_changed(), *self._admissions.lab_changed()]

    def _tick(self, event: TimePassed) -> list[Action]:
        actions: list[Action] = []
        for kind, *details in self.records.deadlines.take(event.at):
            actions += self._on_deadline[kind](*details)
        return actions

    def _forget(self, key: str) -> list[Action]:
        self.records.forget_queue(self.records.queues[key])
        return []
