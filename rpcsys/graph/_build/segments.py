"""Joins stages of one board into **segments**: a segment is one call a frame, and what flows inside stays on the board.

It decides; it builds nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping


def segments(needs: Mapping[str, Iterable[str]], boards: Mapping[str, Hashable]) -> list[list[str]]:
    """The stages, joined as far as possible, in an order in which they can run.

    ``needs`` has the stages that each stage needs, in an order in which they can run; ``boards`` the board of each
    stage that may be joined. A stage joins the newest segment of its board, unless a stage elsewhere would then be both
    before and behind that segment.
    """
    found: list[list[str]] = []
    before: list[set[int]] = []  # the segments that each one needs, and itself
    place: dict[str, int] = {}
    newest: dict[Hashable, int] = {}
    for name, wanted in needs.items():
        direct = {place[each] for each in wanted if each in place}
        board = boards.get(name)
        segment = newest.get(board) if board is not None else None
        if segment is None or any(segment in before[other] for other in direct - {segment}):
            segment = len(found)
            found.append([])
            before.append({segment})
            if board is not None:
                newest[board] = segment
        found[segment].append(name)
        place[name] = segment
        more = set().union(*(before[other] for other in direct))
        for each in before:
            if segment in each:
                each |= more
    return [found[number] for number in _ordered(before)]


def _ordered(before: list[set[int]]) -> list[int]:
    """The segments, each behind those it needs, as near as possible to the order in which they were found."""
    order: dict[int, None] = {}
    while len(order) < len(before):
        ready = (number for number, needed in enumerate(before) if number not in order and needed <= {*order, number})
        order[next(ready)] = None
    return list(order)
