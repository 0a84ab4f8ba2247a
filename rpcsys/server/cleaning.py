"""What sessions leave on the disk and in shared memory: removed in steps, between the loop's other work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rpcsys.server import events as ev
from rpcsys.server import workdirs
from rpcsys.server.leftovers import Leftovers


class Cleaner:
    """Removes what sessions leave in ``folder``, and tells ``feed`` when nothing of one is left."""

    def __init__(self, folder: str, feed: Callable[[ev.Event], None], clock: Callable[[], float]) -> None:
        self._folder = folder
        self._feed = feed
        self._clock = clock
        self._leftovers = Leftovers()
        self._removals: dict[int, Iterator[None]] = {}
        self._removed: dict[int, tuple[str, ...]] = {}

    @property
    def busy(self) -> bool:
        """Whether :meth:`step` has something to do."""
        return bool(self._removals)

    def note(self) -> None:
        """No session runs, and one is about to: what there is now is not its doing."""
        self._leftovers.idle()

    def start(self, session: int, sweep: str) -> None:
        """Begin to remove what a session has left; ``sweep`` as in :class:`rpcsys.server.events.Finish`."""
        self._removed[session] = self._leftovers.remove(sweep == "idle") if sweep else ()
        self._removals[session] = workdirs.removal(workdirs.home(self._folder, session))
        self.step()

    def step(self) -> None:
        """Remove some more."""
        for session, removal in list(self._removals.items()):
            if next(removal, self) is self:
                self._done(session)

    def _done(self, session: int) -> None:
        del self._removals[session]
        left = workdirs.left_in(workdirs.home(self._folder, session))
        removed = self._removed.pop(session)
        self._feed(ev.Removed(self._clock(), session, removed, (left,) if left else ()))
