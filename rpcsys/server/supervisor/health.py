"""Whether this board is fit to be offered, decided by the operator's own commands. Decisions only.

The exit status of ``--health-check`` decides. If it fails, or if sessions fail in a row by the server's fault, the
server runs ``--recover`` (a power switch, for example), then the check again, with growing pauses.
"""

from __future__ import annotations

from rpcsys.link.backoff import Backoff
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.records import ServerRecords

CHECK, RECOVER = "health check", "recovery"

EVERY_S = 60.0  # between two checks of an idle board; checks also run before the first offer and after every session
PAUSE_S = (2.0, 300.0)  # first and longest pause before a board that is not fit is checked again
#: Sessions in a row that fail by the server's fault, after which ``--recover`` runs whatever the check's result.
FAULTS = 2


class BoardHealth:
    """``problem``: why the board is not fit, empty if it is; ``running``: the command under way."""

    def __init__(self, records: ServerRecords) -> None:
        self.records = records
        self.problem = ""
        self.running = ""
        self._check, self._recover = records.policy.health_check, records.policy.recover
        self._due: float | None = 0.0 if self._check else None
        self._fresh = not self._check
        self._faults = 0
        self._backoff = Backoff(*PAUSE_S)

    @property
    def fit(self) -> bool:
        """Whether the board may be offered now."""
        return self._fresh and not self.problem

    @property
    def _to_recover(self) -> bool:
        return self._recover and self._faults >= FAULTS

    def session_ended(self, fault: str) -> None:
        """Have the board checked again after a session, and count failures in a row."""
        self._faults = self._faults + 1 if fault else 0
        if self._check or self._to_recover:
            self._fresh, self._due = False, self.records.now

    def deadline(self) -> float | None:
        return None if self.running else self._due

    def settle(self, *, idle: bool) -> list[do.Action]:
        """Run the command that is due. A board in use is not recovered, and checked only to offer another slot."""
        now = self.records.now
        if self.running or self._due is None or now < self._due:
            return []
        recover = self._to_recover or (self._recover and bool(self.problem))
        if not idle and (recover or self._fresh):
            self._due = now + PAUSE_S[0]
            return []
        self._due = None
        return self._run(RECOVER if recover else CHECK)

    def command_done(self, event: ev.CommandDone) -> list[do.Action]:
        if event.what != self.running:
            return []
        self.running = ""
        if event.what == RECOVER:
            self._faults = 0
            line = f"the recovery command failed: {event.problem}" if event.problem else "the recovery command was run"
            self._fresh = not self._check
            logged = do.Log("warning" if event.problem else "info", line)
            return [logged, *self._run(CHECK)] if self._check else [logged]
        was = self.problem
        if event.problem:
            self.problem = f"the health check failed: {event.problem}"
            self._fresh, self._due = False, event.now + self._backoff.pause()
            return [] if was else [do.Log("error", f"{self.problem}; not offered until it passes")]
        self.problem, self._fresh, self._due = "", True, event.now + EVERY_S
        self._backoff.worked()
        return [do.Log("info", "the health check passes again: this board is offered")] if was else []

    def _run(self, what: str) -> list[do.Action]:
        self.running = what
        return [do.RunCommand(what)]
