"""Whether this board is fit to be offered, as its keeper's own commands say.

``--health-check`` is run before the first offer, after every session, and once a minute while the board is idle; it
decides with its exit status. Where it fails, or where sessions failed in a row for the server's own reasons,
``--recover`` is run (a power switch, say), then the check again, with growing pauses. Decisions only; the
commands are run by :mod:`rpcsys.server.supervisor.commands`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpcsys.link.backoff import Backoff
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev

CHECK, RECOVER = "health check", "recovery"

EVERY_S = 60.0
"""Between two checks of an idle board."""

PAUSE_S = (2.0, 300.0)
"""First and longest pause before a board that is not fit is looked at again."""

FAULTS = 2
"""Sessions that failed in a row by the server's own fault, after which it is recovered whatever the check says."""


@dataclass(frozen=True)
class CommandDone(ev.Event):
    """A command is done; ``problem`` is what went wrong, "" if nothing did."""

    what: str
    problem: str = ""


@dataclass(frozen=True)
class Run(do.Action):
    """Run one of the keeper's commands: :class:`CommandDone` follows."""

    what: str


@dataclass(frozen=True)
class TellHealth(do.Action):
    """Tell our tracker what is wrong with this board, "" for nothing."""

    problem: str


class Health:
    """``problem`` says why the board is not fit; ``running`` is the command under way."""

    def __init__(self, check: bool, recover: bool) -> None:
        self.problem = ""
        self.running = ""
        self._check, self._recover = check, recover
        self._due: float | None = 0.0 if check else None
        self._fresh = not check
        self._faults = 0
        self._backoff = Backoff(*PAUSE_S)

    @property
    def fit(self) -> bool:
        """Whether the board may be offered now."""
        return self._fresh and not self.problem

    def session_ended(self, now: float, fault: str) -> None:
        """A session is over, and who knows what it did to the board."""
        self._faults = self._faults + 1 if fault else 0
        if self._check:
            self._fresh, self._due = False, now
        if self._recover and self._faults >= FAULTS:
            self._fresh, self._due = False, now

    def deadline(self) -> float | None:
        """When :meth:`settle` has something to run."""
        return None if self.running else self._due

    def settle(self, now: float, *, idle: bool) -> list[do.Action]:
        """Run what is due. A board in use is not recovered, and checked only if another slot is to be offered."""
        if self.running or self._due is None or now < self._due:
            return []
        recover = self._recover and bool(self.problem or self._faults >= FAULTS)
        if not idle and (recover or self._fresh):
            self._due = now + PAUSE_S[0]
            return []
        self._due = None
        return self._run(RECOVER if recover else CHECK)

    def done(self, now: float, event: CommandDone) -> list[do.Action]:
        """A command is done."""
        if event.what != self.running:
            return []
        self.running = ""
        if event.what == RECOVER:
            self._faults = 0
            return self._recovered(now, event.problem)
        if event.problem:
            return self._unfit(now, event.problem)
        was, self.problem = self.problem, ""
        self._fresh, self._due = True, now + EVERY_S
        self._backoff.worked()
        return [do.Log("info", "the health check passes again: this board is offered")] if was else []

    def _recovered(self, now: float, problem: str) -> list[do.Action]:
        line = f"the recovery command failed: {problem}" if problem else "the recovery command was run"
        told: list[do.Action] = [do.Log("warning" if problem else "info", line)]
        if self._check:
            return told + self._run(CHECK)
        self._fresh = True
        return told

    def _unfit(self, now: float, problem: str) -> list[do.Action]:
        was, self.problem = self.problem, f"the health check failed: {problem}"
        self._fresh = False
        self._due = now + self._backoff.pause()
        return [] if was else [do.Log("error", f"{self.problem}; not offered until it passes")]

    def _run(self, what: str) -> list[do.Action]:
        self.running = what
        return [Run(what)]
