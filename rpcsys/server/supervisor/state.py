"""The decisions of a device server, as synchronous code: an event comes in, actions come out.

Each kind of decision is a class. This module passes each event to its handler, which records what happened. Then
`_settle` matches clients, slots, children and offers, so that no order of events leaves a slot idle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.admission import ClientAdmission
from rpcsys.server.supervisor.health import BoardHealth
from rpcsys.server.supervisor.offers import Offers
from rpcsys.server.supervisor.parking import Parking
from rpcsys.server.supervisor.process_table import GIVEN, ProcessTable
from rpcsys.server.supervisor.records import Phase, PhaseEvent, Policy, ServerRecords, earliest
from rpcsys.server.supervisor.slots import Slots
from rpcsys.server.supervisor.tracker import TrackerSide


class DeviceServerState:
    """The state of a device server. ``handle`` takes every event; ``deadline`` is the time of the next Tick."""

    def __init__(self, policy: Policy) -> None:
        records = self.records = ServerRecords(policy)
        processes = self.processes = ProcessTable(records)
        slots = self.slots = Slots(records, processes)
        offers = self.offers = Offers(records)
        parking = self.parking = Parking(records)
        health = self.health = BoardHealth(records)
        self.pinning = None  # this part and those below are imported where they are used: an idle server is small
        if policy.pin_governor:
            from rpcsys.server.supervisor.pinning import Pinning

            self.pinning = Pinning(records, slots)
        canary = None
        if policy.canary:
            from rpcsys.server.supervisor.canary_runs import CanaryRuns

            canary = CanaryRuns(records, processes)
        self.canary = canary
        self.deployments = None
        if policy.deploy:  # the device runtime lacks these modules
            from rpcsys.server.supervisor.deployments import Deployments

            self.deployments = Deployments(records, processes)
        self.fronts = None
        if policy.pinned:
            from rpcsys.server.supervisor.fronts import Fronts

            self.fronts = Fronts(processes)
        self.members = None
        if policy.in_lab and self.deployments is not None and self.fronts is not None:
            from rpcsys.server.supervisor.admitted import AdmittedMembers

            self.members = AdmittedMembers(self.deployments, self.fronts)
        tracker = self.tracker = TrackerSide(
            records, slots, offers, parking, health, self.deployments, self.members, canary
        )
        admission = self.admission = ClientAdmission(tracker, self.fronts)
        self.grace_until: float | None = None
        self._on_event: dict[type, Callable[[Any], list[do.Action]]] = {
            ev.Tick: self._tick,
            ev.StopAsked: self._stop,
            ev.DevicesFound: self._devices_found,
            ev.Accepted: admission.accepted,
            ev.Opened: admission.opened,
            ev.Broken: admission.broken,
            ev.Secured: admission.secured,
            ev.HungUp: admission.hung_up,
            ev.Parked: tracker.parked,
            ev.Answering: parking.answering,
            ev.Unparked: parking.lost,
            ev.ZygoteUp: processes.zygote_up,
            ev.Importing: processes.importing,
            ev.ZygoteDown: self._zygote_down,
            ev.Unkilled: processes.unkilled,
            ev.Failed: self._failed,
            ev.ChildReady: self._child_ready,
            ev.ChildDead: self._child_dead,
            ev.SessionOpened: slots.session_opened,
            ev.Held: slots.held,
            ev.LimitAsked: slots.limit_asked,
            ev.MemoryExceeded: slots.memory_exceeded,
            ev.CpusLeft: slots.cpus_left,
            ev.ChildDone: slots.child_done,
            ev.StartFailed: slots.start_failed,
            ev.Removed: tracker.removed,
            ev.CommandDone: health.command_done,
            ev.LinkUp: tracker.link_up,
            ev.LinkDown: tracker.link_down,
            ev.Registered: tracker.registered,
            ev.KeyMade: offers.key_made,
            ev.Pending: offers.pending,
            ev.KeyTaken: tracker.key_taken,
            ev.LeaseRenewed: tracker.renewed,
            ev.LeaseRevoked: tracker.revoked,
            ev.EndConfirmed: offers.confirmed,
        }
        if self.fronts is not None:
            self._on_event[ev.FrontTook] = self.fronts.took
        self._ticks = [admission.tick, processes.tick, slots.tick, offers.tick, parking.tick]
        self._deadlines = [admission.deadline, processes.deadline, slots.deadline, offers.deadline, parking.deadline]
        if self.pinning is not None:
            self._deadlines.append(self.pinning.deadline)
        if canary is not None:
            self._on_event[ev.CanaryDone] = canary.done
            self._ticks.append(canary.tick)
            self._deadlines.append(canary.deadline)
        if self.deployments is not None:
            self._on_event.update(self.deployments.handlers())
            self._deadlines.append(self.deployments.deadline)
        if self.members is not None:
            self._on_event.update(self.members.handlers())
            self._ticks.append(self.members.tick)
            self._deadlines.append(self.members.deadline)

    def start(self) -> list[do.Action]:
        return [do.FindDevices(), do.StartZygote()] if self.records.searching else [do.StartZygote()]

    def handle(self, event: ev.Event) -> list[do.Action]:
        """Handle one event; the actions, in order. None after the server has exited."""
        if self.records.phase is Phase.EXITED:
            return []
        self.records.now = event.now
        return self._on_event[type(event)](event) + self._settle()

    def deadline(self) -> float | None:
        """The time of the next Tick, None for no Tick."""
        times = [self.grace_until, *(deadline() for deadline in self._deadlines)]
        if self.records.phase is Phase.SERVING and not self.processes.unclean:
            times.append(self.health.deadline())
        return earliest(times)

    def _zygote_down(self, event: ev.ZygoteDown) -> list[do.Action]:
        actions = self.processes.zygote_down(event.now)
        for number, child in list(self.processes.children.items()):
            if child.kind.of_session:
                actions += self.slots.child_gone(number, event.cleaned)
            else:
                self.processes.remove(number)
                actions += self._canary_dead(number)
        actions += self.admission.front_gone()
        return actions + (self.deployments.zygote_down() if self.deployments is not None else [])

    def _failed(self, event: ev.Failed) -> list[do.Action]:
        child = None if event.child is None else self.processes.children.get(event.child)
        if child is not None:
            child.failed = event.why
        if self.records.phase is Phase.STARTING and (child is None or child.kind is not ChildKind.TVM):
            return self.records.exit(event.why)
        return [do.Log("error", event.why)]

    def _child_ready(self, event: ev.ChildReady) -> list[do.Action]:
        child = self.processes.ready(event.child)
        if child is None:
            return []
        if not child.kind.of_session:
            child.move(GIVEN)
            if self.fronts is not None and child.kind is ChildKind.FRONT:
                return self.fronts.ready(event.child)
            if self.canary is not None and child.kind is ChildKind.CANARY:
                return self.canary.ready(event.child)
            return [] if self.deployments is None else self.deployments.ready(event.child)
        if self.records.phase is not Phase.STARTING:
            return []
        self.records.move(PhaseEvent.READY)
        return [do.Announce(), *self._offer()]

    def _devices_found(self, event: ev.DevicesFound) -> list[do.Action]:
        self.records.searching = False
        devices = do.Log("info", f"devices: {', '.join(event.names)}")
        return [*(do.Log("warning", problem) for problem in event.problems), devices, *self._offer()]

    def _offer(self) -> list[do.Action]:
        """Connect to the tracker once sessions can be served and the devices are known."""
        ready = self.records.phase is Phase.SERVING and not self.records.searching
        return self.offers.open() if ready and self.records.policy.tracked else []

    def _child_dead(self, event: ev.ChildDead) -> list[do.Action]:
        actions = self.processes.died(event.child)
        child = self.processes.children.get(event.child)
        if child is None:
            return actions
        if child.kind.of_session:
            return actions + self.slots.child_dead(event, child)
        self.processes.remove(event.child)
        if child.kind is ChildKind.FRONT:
            return actions + self.admission.front_gone(event.child)
        if child.kind is ChildKind.CANARY:
            return actions + self._canary_dead(event.child, event.status)
        return actions + (self.deployments.dead(event.child, event.status) if self.deployments is not None else [])

    def _canary_dead(self, child: int, status: int = 0) -> list[do.Action]:
        return [] if self.canary is None else self.canary.dead(child, status)

    @property
    def _idle(self) -> bool:
        """Whether nobody uses the board or is about to, and it is neither checked nor on its way out."""
        offered = not any(key.held or key.taken_at is not None for key in self.offers.keys.values())
        clients = self.slots.sessions or self.slots.waiting or len(self.admission.openings)
        unused = offered and not clients and not (self.deployments is not None and self.deployments.in_use)
        fit = self.records.phase is Phase.SERVING and not self.processes.unclean
        return bool(unused and fit and not self.health.running)

    def _tick(self, event: ev.Tick) -> list[do.Action]:
        over = self.grace_until is not None and event.now >= self.grace_until
        return (self._end_all() if over else []) + [action for tick in self._ticks for action in tick()]

    def _stop(self, event: ev.StopAsked) -> list[do.Action]:
        before = self.records.phase
        self.records.move(PhaseEvent.DRAIN if event.patient else PhaseEvent.STOP)
        if before is Phase.STOPPING:
            return [] if event.patient else self._end_all()
        if not event.patient:
            self.grace_until = event.now + self.records.policy.grace_s
        if before not in (Phase.STARTING, Phase.SERVING):
            return []
        return self.admission.stop() + (self.deployments.stop() if self.deployments is not None else [])

    def _end_all(self) -> list[do.Action]:
        self.grace_until = None
        return self.slots.end_all() + (self.deployments.end() if self.deployments is not None else [])

    def _settle(self) -> list[do.Action]:
        records, deployments = self.records, self.deployments
        if records.phase is Phase.EXITED:
            return []
        self.slots.admit()
        actions, begun = self.slots.hand_out()
        actions += self.processes.restart() + self.slots.spawn()
        if self.pinning is not None:
            actions += self.pinning.settle()
        for session in begun:
            actions += self.tracker.began(session)
        if self.fronts is not None:
            actions += self.fronts.settle()
        if deployments is not None:
            actions += deployments.settle()
        actions += self.tracker.report_deployed()
        if self.canary is not None:
            actions += self.canary.settle(idle=self._idle, reporting=self.offers.linked)
        if records.stopping:
            actions += self.tracker.leave()
            busy = self.slots.sessions or self.offers.owing() or (deployments is not None and deployments.busy)
            return actions if busy else actions + records.exit()
        if self.processes.unclean:
            return actions + self.tracker.turn_away()
        return actions + (self.tracker.settle() if records.policy.tracked and records.phase is Phase.SERVING else [])
