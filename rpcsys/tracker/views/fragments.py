"""A page as fragments of HTML, which are drawn again when what they show has changed, and only then.

A viewer says which change it has seen last, and gets what has changed since.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

SLICE_S = 0.002  # how long fragments are drawn between two turns of the event loop


class Fragment(NamedTuple):
    """One element of a page. ``id``: unique in its group; ``data``: equal data are drawn alike.

    ``group``: the element that contains it, with others in their order; ``template``: a file of ``page/``.
    """

    group: str
    id: str
    template: str
    data: dict[str, Any]


class _Drawn(NamedTuple):
    fragment: Fragment
    html: str
    change: int


class DrawnPage:
    """A page's fragments as HTML, each with the number of the change that drew it. ``draw``: the HTML of a fragment."""

    def __init__(self, draw: Callable[[Fragment], str]) -> None:
        self._draw = draw
        self._name = os.urandom(4).hex()  # numbers of another page, or of another run, say nothing here
        self._change = 0
        self._groups: dict[str, dict[str, _Drawn]] = {}
        self._ordered: dict[str, int] = {}  # by group: the change of its order

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    @property
    def version(self) -> str:
        """What a viewer of this page as it is now has seen."""
        return f"{self._name}-{self._change}"

    async def update(self, fragments: Iterable[Fragment]) -> None:
        """Draw what is new or has changed. The event loop runs between slices: ``fragments`` may change meanwhile."""
        change, until = self._change + 1, time.monotonic() + SLICE_S
        groups: dict[str, dict[str, _Drawn]] = {group: {} for group in self._groups}
        for fragment in fragments:
            before = self._groups.get(fragment.group, {}).get(fragment.id)
            known = before is not None and before.fragment == fragment
            drawn = before if before is not None and known else _Drawn(fragment, self._draw(fragment), change)
            groups.setdefault(fragment.group, {})[fragment.id] = drawn
            if time.monotonic() > until:
                await asyncio.sleep(0)
                until = time.monotonic() + SLICE_S
        for group, drawn_now in groups.items():
            if list(drawn_now) != list(self._groups.get(group, ())):
                self._ordered[group] = change
        self._groups, self._change = groups, change

    def html(self) -> dict[str, str]:
        """The HTML of each group."""
        return {group: "".join(drawn.html for drawn in fragments.values()) for group, fragments in self._groups.items()}

    def since(self, version: str) -> dict[str, Any]:
        """``groups``: by group the ``fragments`` that a viewer of ``version`` has not seen, as HTML by ID, and the
        ``order`` of all IDs, None if it has not changed. Groups without a change are left out.

        ``whole``: the viewer has seen another page, or another run's: the groups are all there is.
        """
        page, _, number = version.rpartition("-")
        known = page == self._name and number.isascii() and number.isdigit() and len(number) < 16
        seen = int(number) if known else -1
        changed: dict[str, Any] = {}
        for group, fragments in self._groups.items():
            fresh = {name: drawn.html for name, drawn in fragments.items() if drawn.change > seen}
            order = list(fragments) if self._ordered.get(group, 0) > seen else None
            if fresh or order is not None:
                changed[group] = {"fragments": fresh, "order": order}
        return {"whole": not known, "groups": changed}
