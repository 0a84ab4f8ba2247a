"""TVM's commands to a tracker: their replies carry no id."""

from __future__ import annotations

import collections
import time
from typing import Any, Deque, Tuple

from rpcsys.errors import ProtocolError, TrackerError
from rpcsys.link.link import Link
from rpcsys.wire import tracker


class TvmCommands:
    """TVM's commands of a server or a proxy on one link: replies carry no id and come in order.

    ``unanswered``: the commands without a reply yet, each with the time at which it was sent.
    """

    def __init__(self) -> None:
        self.unanswered: Deque[Tuple[type, float]] = collections.deque()

    def give(self, link: Link, command: tracker.TvmMessage) -> None:
        """Send a command. Raises TrackerLost."""
        self.unanswered.append((type(command), time.monotonic()))
        link.send(command)

    def answered(self, reply: Any) -> Tuple[type, Tuple[str, ...]]:
        """The class of the command that ``reply`` answers, and the match keys in a reply to `GetPending`.

        Raises TrackerError: the tracker refused the command; ProtocolError: no command waits, or the reply is invalid.
        """
        if not self.unanswered:
            raise ProtocolError("the tracker sent a reply without a command")
        command, _ = self.unanswered.popleft()
        if command is tracker.GetPending:
            if type(reply) is list and all(isinstance(key, str) for key in reply):
                return command, tuple(reply)
            raise ProtocolError(f"the tracker answered {command.__name__} with {reply!r:.60}")
        if reply != tracker.SUCCESS:
            raise TrackerError(f"the tracker refused {command.__name__}: it answered {reply!r:.60}")
        return command, ()
