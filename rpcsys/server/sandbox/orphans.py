"""Processes that lost their parent and became this one's: killed as they are seen, until no look finds another.

A process that forks and exits every 50 us is gone before a list of all is read, but leaves another child here. So
each is killed the moment it is seen, and what is below it comes here by that; looks follow each other without a pause.
"""

from __future__ import annotations

import os
import signal
import time
from typing import AbstractSet, Callable, Dict, List, Tuple

from rpcsys.server.sandbox import processes

AGAIN_S = 0.005
"""Between two bursts of looks."""

BURST_S = 0.02
"""Of looks without a pause."""

KILL_TIMEOUT_S = 5.0
"""A process seen alive so long after it was killed is taken for stuck in the kernel."""


class Orphans:
    """``names``: of those that were killed; ``stuck``: by number, the names of those that SIGKILL has not ended in time.

    Knows what it has killed until it is collected: a process number is nobody else's so far.
    """

    def __init__(self) -> None:
        self.names: List[str] = []
        self.stuck: Dict[int, str] = {}
        self._killed: Dict[int, Tuple[float, str]] = {}

    def burst(self, spared: Callable[[List[processes.Dead]], AbstractSet[int]]) -> bool:
        """Collect the dead and kill the others, for a while; whether none but those that are stuck is left.

        ``spared`` takes the dead, and returns the numbers of those children that are to live.
        """
        until = time.monotonic() + BURST_S
        while True:
            dead = processes.reap()
            for one in dead:
                self._gone(one)
            left = set(processes.children(os.getpid())) - spared(dead)
            for pid in left - self._killed.keys():
                processes.kill(pid)  # first, and named then: it may live for 50 us
                self._killed[pid] = (time.monotonic(), processes.name_of(pid))
            now = time.monotonic()
            for pid in left - self.stuck.keys():
                since, name = self._killed[pid]
                if now >= since + KILL_TIMEOUT_S and processes.alive(pid):
                    self.stuck[pid] = name
            if left <= self.stuck.keys():
                return True
            if now >= until:
                return False

    def collect_stuck(self) -> None:
        """Collect those of them that have ended after all, and nobody else."""
        for pid in list(self.stuck):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0]
            except ChildProcessError:
                ended = pid
            if ended:
                del self.stuck[pid], self._killed[pid]

    def _gone(self, dead: processes.Dead) -> None:
        _, name = self._killed.pop(dead.pid, (0.0, ""))
        self.stuck.pop(dead.pid, None)
        if name and dead.status == -signal.SIGKILL:  # else it had ended by itself
            self.names.append(name)
