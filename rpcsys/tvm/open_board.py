"""A board with an open session, which measures candidates; the next one is on its way while one is measured."""

from __future__ import annotations

import collections
import time
from dataclasses import dataclass
from typing import Any, Protocol

from rpcsys.client import Session, candidates
from rpcsys.client.calls import CallFuture
from rpcsys.errors import DeadlineExceeded, SessionError
from rpcsys.tvm.measured import board_of
from rpcsys.tvm.tuning_state import Candidate, Standing

#: Candidates under way in one session: one is measured, and one waits behind it.
DEPTH = 2
#: What a session may have loaded before another one is opened: a server keeps the files, and perhaps the libraries.
MAX_LOADED, MAX_LOADED_BYTES = 500, 64 << 20
ENTRY = "main"  # the function of a candidate's library


@dataclass(frozen=True)
class TuningPlan:
    """How candidates are measured, and on which boards."""

    key: str
    boards: int | None  # at most; None: as many as are free
    priority: float
    options: dict[str, Any]  # of `candidates.submit`
    timeout_s: float  # of one candidate
    wait_timeout_s: float | None  # for a board


class CandidateSource(Protocol):
    """Where a board's candidates come from, and where their outcomes go."""

    def grow(self) -> None:
        """Called before each candidate: other boards may be of use."""

    def take(self, *, fresh: bool) -> Candidate | None:
        """The next candidate; ``fresh``: the session has measured nothing yet."""

    def lost(self, under_way: list[Candidate], error: Exception) -> None:
        """The session ended by ``error`` while the first one ran."""

    def put_back(self, under_way: list[Candidate]) -> None:
        """The session ended before these ran."""

    def keep(self, candidate: Candidate, board: dict[str, Any], seconds: list[float]) -> None:
        """A candidate is measured."""


class CandidateTimeout(Exception):
    """A candidate took longer than it may."""


class OpenBoard:
    """A session, and its board as measurements depend on it."""

    def __init__(self, session: Session, plan: TuningPlan) -> None:
        self.session = session
        self.board = board_of(session, plan.key)
        self.used = time.monotonic()
        self._plan = plan
        self._loaded = self._loaded_bytes = 0

    def measure(self, source: CandidateSource) -> bool:
        """Measure candidates until ``source`` has none for this session; whether the session can be used again."""
        under_way: collections.deque[tuple[Candidate, CallFuture]] = collections.deque()
        try:
            while self._fill(under_way, source):
                if not self._finish(under_way, source):
                    return False
            return not self._worn
        except Exception as error:  # no candidate is left without an outcome
            for candidate, _ in under_way:
                candidate.answer(error=error)
            raise
        finally:
            self.used = time.monotonic()

    @property
    def _worn(self) -> bool:
        return self._loaded >= MAX_LOADED or self._loaded_bytes >= MAX_LOADED_BYTES

    def _fill(self, under_way: collections.deque[tuple[Candidate, CallFuture]], source: CandidateSource) -> bool:
        """Send candidates until `DEPTH` are under way; whether any is."""
        while len(under_way) < DEPTH and not self._worn:
            if under_way and under_way[0][0].standing is Standing.ALONE:
                break
            source.grow()
            candidate = source.take(fresh=self._loaded == 0)
            if candidate is None:
                break
            try:
                under_way.append((candidate, self._sent(candidate)))
            except SessionError:
                # The session has ended: what is under way tells why. With nothing under way it was an idle one.
                source.put_back([candidate])
                break
            except Exception as error:  # noqa: BLE001 - such as a file that cannot be linked: the candidate's own
                candidate.answer(error=error)
        return bool(under_way)

    def _sent(self, candidate: Candidate) -> CallFuture:
        plan, code = self._plan, candidate.artefact.code
        future = candidates.submit(
            self.session, code, ENTRY, candidate.arguments, plan.options,
            device=candidate.device, deadline_s=plan.timeout_s,
        )  # fmt: skip
        self._loaded += 1
        self._loaded_bytes += len(code)
        return future

    def _finish(self, under_way: collections.deque[tuple[Candidate, CallFuture]], source: CandidateSource) -> bool:
        """Wait for the first one, and set its outcome; False if the session has ended."""
        candidate, future = under_way[0]
        try:
            seconds = candidates.results(future.result())
        except DeadlineExceeded:
            under_way.popleft()
            source.put_back([other for other, _ in under_way])
            under_way.clear()
            candidate.answer(error=CandidateTimeout(f"Timeout, killed after {self._plan.timeout_s:g} seconds"))
            return False
        except SessionError as error:
            ran = [each for each, _ in under_way]
            under_way.clear()
            source.lost(ran, error)
            return False
        except Exception as error:  # noqa: BLE001 - whatever the candidate raised
            under_way.popleft()
            candidate.answer(error=error)
            return True
        source.keep(candidate, self.board, seconds)
        candidate.answer(seconds)
        under_way.popleft()
        return True
