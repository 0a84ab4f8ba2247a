"""What a zygote and its children import before they can serve: an import that waits for something is not waited for for ever."""

from __future__ import annotations


class Imports:
    """Imports under way: the zygote's (None), and those of children that were not forked, by number.

    ``limit_s``: what each may take, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._under_way: dict[int | None, tuple[str, float]] = {}

    def begun(self, now: float, child: int | None, what: str) -> None:
        """An import has begun, and its time; the one before it is done."""
        self._under_way[child] = what, now + self._limit_s

    def done(self, child: int | None) -> None:
        """Nothing is imported there any more."""
        self._under_way.pop(child, None)

    def deadline(self) -> float | None:
        """When the next one has had its time."""
        return min((until for _, until in self._under_way.values()), default=None)

    def hanging(self, now: float) -> list[tuple[int | None, str]]:
        """Those that have had their time, and a line about each. They are told of once."""
        late = [(child, what) for child, (what, until) in self._under_way.items() if now >= until]
        for child, _ in late:
            del self._under_way[child]
        return [(child, self._line(what)) for child, what in late]

    def _line(self, what: str) -> str:
        return (
            f"{what}: the import is not done after {self._limit_s:g} s "
            "(does it wait for something? --import-timeout gives it longer)"
        )
