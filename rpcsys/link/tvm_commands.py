"""TVM's commands to a tracker, as servers and proxies give them: replies carry no id and come in order."""

from __future__ import annotations

import collections
import time
from typing import Any, Deque, Tuple

from rpcsys.errors import ProtocolError, TrackerError
from rpcsys.link.link import Link
from rpcsys.wire import tracker


class TvmCommands:
    """The commands on one link that have no reply yet: ``unanswered``, each with the time at which it was given."""

    def __init__(self) -> None:
        self.unanswered: Deque[Tuple[type, float]] = collections.deque()

    def give(self, link: Link, command: tracker.TvmMessage) -> None:
        """Send a command. Raises TrackerLost."""
        self.unanswered.append((type(command), time.monotonic()))
        link.send(command)

    def answered(self, reply: Any) -> Tuple[type, Tuple[str, ...]]:
        """The class of the command that ``reply`` answers, and the match keys that `GetPending` asked for.

        Raises TrackerError: the tracker refused the command; ProtocolError: nothing was asked, or the reply is none.
        """
        if not self.unanswered:
            raise ProtocolError("the tracker answered what it was not asked")
        command, _ = self.unanswered.popleft()
        if command is tracker.GetPending:
            if type(reply) is list and all(isinstance(key, str) for key in reply):
                return command, tuple(reply)
            raise ProtocolError(f"the tracker answered {command.__name__} with {reply!r:.60}")
        if reply != tracker.SUCCESS:
            raise TrackerError(f"the tracker refused {command.__name__}: it answered {reply!r:.60}")
        return command, ()
