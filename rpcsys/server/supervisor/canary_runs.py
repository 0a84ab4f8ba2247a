"""When this board's canary runs: while nobody uses the board, and soon after a session that left something.

A user never waits for it: the slots stay offered while it runs, and whoever comes ends it. Decisions only.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from rpcsys.link.backoff import Backoff
from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.process_table import ProcessTable, ZygoteState
from rpcsys.server.supervisor.records import ServerRecords

EVERY_S = 300.0  # from the end of a run to the next one, by default
SHARE = 0.01  # of the board's time, at most; ``--canary-every`` may ask for more
IDLE_S = 10.0  # nobody has used the board for so long: a tuner's sessions follow each other within milliseconds
SOON_S = 1.0  # the same after a session that left something
RUN_S = 60.0  # a run that is not over by then is ended: its model hangs
AGAIN_S = 5.0  # pause between two kills
OUTCOMES = ("done", "disturbed", "stopped", "failed")


class RunState(str, Enum):
    """The state of the canary's process."""

    RESTING = "there is none"
    STARTING = "it is being made"
    RUNNING = "it runs"
    ENDING = "it is killed"


class RunEvent(str, Enum):
    """What happens to it."""

    BEGIN = "a run is due, and the board is idle"
    READY = "it waits for its job"
    STOP = "a user has come, or its time is over"
    DEAD = "it has ended"


RESTING, STARTING, RUNNING, ENDING = RunState
BEGIN, READY, STOP, DEAD = RunEvent

TRANSITIONS = {
    RESTING: {BEGIN: STARTING},
    STARTING: {READY: RUNNING, STOP: ENDING, DEAD: RESTING},
    RUNNING: {STOP: ENDING, DEAD: RESTING},
    ENDING: {STOP: ENDING, DEAD: RESTING},
}


class CanaryRuns:
    """The runs of a board; ``counts`` them by outcome. ``seconds``: of the last one that nobody disturbed."""

    def __init__(self, records: ServerRecords, processes: ProcessTable) -> None:
        self.records = records
        self.processes = processes
        self.state = RESTING
        self.child: int | None = None
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self._result: ev.CanaryDone | None = None
        self._idle_since: float | None = None
        self._due = 0.0
        self._rested = 0.0  # no run begins earlier, so that all together stay within their share
        self._began = 0.0
        self._until: float | None = None  # when the run under way is killed, again if need be
        self._soon = False
        self._reporting = False
        self._again = Backoff(EVERY_S * SHARE, EVERY_S)

    def session_ended(self, *, left: bool) -> None:
        """Note the end of a session; one that ``left`` something may have changed the board."""
        if left:
            self._soon, self._due = True, self.records.now

    def ready(self, child: int) -> list[do.Action]:
        """The child of a run waits for its job."""
        if child != self.child or self.state is not STARTING:
            return []
        self.state = TRANSITIONS[self.state][READY]
        return [do.RunCanary(child)]

    def done(self, event: ev.CanaryDone) -> list[do.Action]:
        """Note what a run says. It counts once its process has ended by itself."""
        if event.child == self.child:
            self._result = event
        return []

    def dead(self, child: int, status: int = 0) -> list[do.Action]:
        """The process has ended: report its result."""
        if child != self.child:
            return []
        stopped, result = self.state is ENDING, self._result
        self.state = TRANSITIONS[self.state][DEAD]
        self.child = self._result = self._until = None
        now, lasted_s = self.records.now, self.records.now - self._began
        self._rested = now + min(self._pause_s(lasted_s), lasted_s / SHARE)
        if stopped and now - self._began < RUN_S:
            self.counts["stopped"] += 1
            return []
        self._due = now + self._pause_s(lasted_s)
        if stopped:
            result = ev.CanaryDone(now, child, why=f"it was not done after {RUN_S:g} s")
        return self._report(result or ev.CanaryDone(now, child, why=f"its process ended with status {status}"))

    def _report(self, result: ev.CanaryDone) -> list[do.Action]:
        outcome = "failed" if result.why else "disturbed" if result.disturbed else "done"
        self.counts[outcome] += 1
        self._soon = self._soon and outcome == "disturbed"
        if outcome == "disturbed":
            self._due = min(self._due, self.records.now + self._again.pause())
        else:
            self._again.worked()
        self.seconds = result.seconds if outcome == "done" else self.seconds
        lines = [do.Log("warning", f"the canary could not run: {result.why}")] if result.why else []
        return [*lines, do.ReportCanary(result.canary, result.seconds, result.disturbed, result.throttled, result.why)]

    def settle(self, *, idle: bool, reporting: bool) -> list[do.Action]:
        """Begin the run that is due if the board is idle; end the one under way if it is not.

        ``reporting``: whether a tracker would hear of it.
        """
        now, self._reporting = self.records.now, reporting
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if self.state in (STARTING, RUNNING) and not idle:
            return self._stop()
        begin = self._begins_at()
        if begin is None or now < begin:
            return []
        self.state = TRANSITIONS[self.state][BEGIN]
        self._began, self._until = now, now + RUN_S
        spawned = self.processes.spawn(ChildKind.CANARY)
        self.child = spawned.child
        return [spawned]

    def _begins_at(self) -> float | None:
        possible = self._reporting and self.processes.zygote is ZygoteState.UP
        if self.state is not RESTING or self._idle_since is None or not possible:
            return None
        pace_s = self.records.policy.canary_every_s
        idle_s = SOON_S if self._soon else IDLE_S if pace_s is None else min(IDLE_S, pace_s)
        return max(self._due, self._rested, self._idle_since + idle_s)

    def _pause_s(self, lasted_s: float) -> float:
        """From the end of a run of ``lasted_s`` to the next one."""
        pace_s = self.records.policy.canary_every_s
        return max(EVERY_S, lasted_s / SHARE) if pace_s is None else pace_s

    def _stop(self) -> list[do.Action]:
        self.state = TRANSITIONS[self.state][STOP]
        self._until = self.records.now + AGAIN_S
        return [] if self.child is None else [do.Kill(self.child)]

    def tick(self) -> list[do.Action]:
        """End a run that takes too long."""
        return self._stop() if self._until is not None and self.records.now >= self._until else []

    def deadline(self) -> float | None:
        """When :meth:`tick` or :meth:`settle` has something to do."""
        return self._begins_at() if self.state is RESTING else self._until
