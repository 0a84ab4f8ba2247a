"""A case: one operation of ours and those of its peers, the figures, and their goals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.figures import Goal, Unit


@dataclass(frozen=True)
class Measured:
    """One operation of one subject, and where it runs.

    By default both ends share one core. ``apart``: the server has its own core, for clients that would take most of a
    shared one. ``slow``: fewer rounds, for a slow peer. ``plain``: both ends without the C library.
    """

    subject: str
    operation: str
    parameters: tuple[tuple[str, Any], ...] = ()
    hide_numpy: bool = False
    plain: bool = False
    apart: bool = False
    slow: bool = False

    @property
    def worker(self) -> tuple[str, bool, bool, bool]:
        """The key of its worker."""
        return (self.subject, self.hide_numpy, self.plain, self.apart)


@dataclass(frozen=True)
class Reading:
    """One figure of a case, and its goals by peer."""

    what: str
    figure: str
    unit: Unit
    goals: Mapping[str, Goal] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Our operation and its peers. A peer may have several operations; their figures are summed."""

    name: str
    ours: Measured
    peers: Mapping[str, tuple[Measured, ...]]
    readings: tuple[Reading, ...]

    @property
    def everything(self) -> list[Measured]:
        """All operations, ours first, each once."""
        return list(dict.fromkeys([self.ours, *(part for parts in self.peers.values() for part in parts)]))
