"""The intervals in which clients held slots of boards; checks that no board had more holders at a time than slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Held:
    """Between ``since`` and ``until``, in seconds of one clock, ``who`` surely held a slot of ``board``."""

    board: str
    since: float
    until: float
    who: str = ""


def too_many(held: Iterable[Held], slots: Mapping[str, int]) -> list[tuple[Held, ...]]:
    """The groups of holders that held a board at the same time although it has fewer ``slots`` (default: one)."""
    boards: dict[str, list[Held]] = {}
    for one in held:
        boards.setdefault(one.board, []).append(one)
    return [found for board, rows in boards.items() for found in _together(rows, slots.get(board, 1))]


def _together(rows: list[Held], slots: int) -> list[tuple[Held, ...]]:
    found = []
    now: list[Held] = []
    for one in sorted(rows, key=lambda row: row.since):
        now = [other for other in now if other.until > one.since]
        now.append(one)
        if len(now) > slots:
            found.append(tuple(now))
    return found
