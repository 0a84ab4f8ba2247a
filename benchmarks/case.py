"""What a case is: one operation of ours beside those of its peers, the figures taken, and their goals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.figures import Goal, Unit


@dataclass(frozen=True)
class Measured:
    """One operation of one subject, with where it runs.

    By default both ends share one core; ``apart`` gives the server a core of its own, for loads that
    would otherwise measure themselves. ``slow``: fewer rounds, as this peer takes its time.
    """

    subject: str
    operation: str
    parameters: tuple[tuple[str, Any], ...] = ()
    hide_numpy: bool = False
    apart: bool = False
    slow: bool = False

    @property
    def worker(self) -> tuple[str, bool, bool]:
        """What tells the workers apart."""
        return (self.subject, self.hide_numpy, self.apart)


@dataclass(frozen=True)
class Reading:
    """One of the figures a case takes, and the goals for it by peer."""

    what: str
    figure: str
    unit: Unit
    goals: Mapping[str, Goal] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Ours beside its peers. A peer may be several operations whose figures add up."""

    name: str
    ours: Measured
    peers: Mapping[str, tuple[Measured, ...]]
    readings: tuple[Reading, ...]

    @property
    def everything(self) -> list[Measured]:
        """All that is measured, ours first, each once."""
        return list(dict.fromkeys([self.ours, *(part for parts in self.peers.values() for part in parts)]))
