"""The supervisor's end of its other processes: the zygote, and the tethers of the children.

When the zygote dies, its children die with it (PR_SET_PDEATHSIG), and what they leave behind becomes the
supervisor's, which kills it before it says that the zygote is down.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rpcsys.errors import ProtocolError
from rpcsys.server.sandbox import launch, messages, processes
from rpcsys.server.sandbox.messages import ChildKind, Job
from rpcsys.server.sandbox.processes import RESCAN_S, Orphans
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.crash_output import LastWords
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.prints import Prints
from rpcsys.wire.control import OUTCOMES

LEAVE_S = (1.0, 5.0)
"""When the server ends: for the zygote to leave by itself, and then for its processes to be killed."""

STUCK_S = 1.0
"""Between two looks at whether a process that no signal has ended has ended after all."""


class Spawner:
    """One zygote at a time. What happens is told to ``feed``, with ``now`` from ``clock``.

    ``on_service``: hears what hosts and deployers say beside what sessions do: the child, its
    message, and the descriptor with it, which it returns if it does not take it. Raises `ProtocolError` or KeyError for what
    none of them says.
    """

    def __init__(
        self, loop: Loop, settings: dict[str, Any], feed: Callable[[ev.Event], None], clock: Callable[[], float]
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._feed = feed
        self._clock = clock
        self._first = True
        self._zygote: int | None = None
        self._control: socket.socket | None = None
        self._tethers: dict[int, socket.socket] = {}
        self._roots: dict[int, tuple[int, ...]] = {}
        self._allowed: dict[int, messages.Allowance] = {}
        self._ready: set[int] = set()
        self._kinds: dict[int, ChildKind] = {}
        self._kills: dict[int, int] = {}
        self._orphans = Orphans()
        self._prints = Prints(loop, clock)
        self._last_words = LastWords(self._prints.last)
        self._sweeping = False
        self.on_service: Callable[[int, dict[str, Any], int | None], int | None] | None = None

    def start(self) -> None:
        """Start a zygote; an :class:`~rpcsys.server.supervisor.events.ZygoteDown` follows if that fails."""
        ours, theirs = messages.pair()
        ours.setblocking(False)
        printing = -1
        try:
            printing = self._prints.open()
            self._zygote = self._launch(theirs.fileno(), printing)
        except OSError as error:
            ours.close()
            self._feed(ev.Failed(self._clock(), f"cannot start another {sys.executable}: {error.strerror}"))
            self._feed(ev.ZygoteDown(self._clock()))
            return
        finally:
            theirs.close()
            if printing >= 0:
                os.close(printing)
        self._control = ours
        self._loop.add(ours.fileno(), self._hear)

    def _launch(self, descriptor: int, printing: int) -> int:
        """The first zygote is a copy of this process, while that has one thread and no secret in its memory."""
        first, self._first = self._first, False
        if first and threading.active_count() == 1:
            return launch.copy("rpcsys.server.sandbox.zygote", self._settings, descriptor, printing)
        return launch.start(
            "rpcsys.server.sandbox.zygote", self._settings, descriptor, "rpcsys-zygote", leader=True, printing=printing
        )

    def spawn(self, child: int, kind: ChildKind) -> None:
        """Ask for a child; without one, its death is told at once."""
        try:
            ours, theirs = messages.pair()
        except OSError:
            self._feed(ev.ChildDead(self._clock(), child, 1))
            return
        ours.setblocking(False)
        self._tethers[child] = ours
        self._allowed[child] = _allowance(kind, self._clock())
        self._kinds[child] = kind
        self._loop.add(ours.fileno(), lambda: self._hear_child(child, ours))
        self._order(theirs.fileno(), spawn=child, kind=kind)
        theirs.close()

    def kill(self, child: int) -> None:
        """Have a child and everything below it killed.

        A zygote may be stopped, or have no turn: the second time this process kills it itself, and sees the next time whether it
        lives all the same.
        """
        self._order(None, kill=child)
        # One that has been collected has a number that may be another's.
        roots = [pid for pid in self.roots(child) if processes.parent(pid) == self._zygote]
        if not roots:
            return
        self._kills[child] = self._kills.get(child, 0) + 1
        if self._kills[child] > 2 and (names := processes.names(roots[:1])):
            self._feed(ev.Unkilled(self._clock(), names, child))
        if self._kills[child] > 1:
            for pid in roots:
                processes.kill(pid)

    def kill_zygote(self) -> None:
        """Kill the zygote: :class:`~rpcsys.server.supervisor.events.ZygoteDown` follows."""
        if self._zygote is not None:
            processes.kill(self._zygote)

    def roots(self, child: int) -> tuple[int, ...]:
        """The process number of a child that waits or serves, then its init's, where it has one; none for another."""
        return self._roots.get(child, ())

    def give(self, child: int, job: Job, descriptor: int | None) -> None:
        """Hand a waiting child its job. Raises OSError if the child is gone."""
        tether = self._tethers.get(child)
        if tether is None:
            raise BrokenPipeError("its process is gone")
        messages.send(tether, job.to_bytes(), descriptor)

    def tell(self, child: int, fields: dict[str, Any], descriptor: int | None = None) -> bool:
        """Tell a child something; whether it could be told."""
        tether = self._tethers.get(child)
        try:
            if tether is not None:
                messages.tell(tether, descriptor, **fields)
        except OSError:
            return False
        return tether is not None

    def extend(self, child: int, until: float | None) -> None:
        """Tell a child that its session ends at another time than it was given."""
        tether = self._tethers.get(child)
        if tether is not None:
            try:
                messages.tell(tether, until=until)
            except OSError:
                pass  # it is about to end, or has not looked for hundreds of renewals

    def _order(self, descriptor: int | None, **order: Any) -> None:
        if self._control is None:
            return
        try:
            messages.tell(self._control, descriptor, **order)
        except BlockingIOError:
            # It has not taken a message for hundreds of them: it is stuck.
            self.kill_zygote()
        except OSError:
            pass  # it is dead, and its end of the socket tells so next

    def _hear(self) -> None:
        assert self._control is not None
        try:
            data, extra = messages.receive(self._control)
        except BlockingIOError:
            return
        except OSError:
            data, extra = b"", None
        if extra is not None:
            os.close(extra)
        try:
            self._hear_zygote(messages.parse(data, messages.OF_ZYGOTE))
        except (ProtocolError, KeyError, TypeError):
            self._lost()  # it is gone, or user code has written to it

    def _hear_zygote(self, said: dict[str, Any]) -> None:
        now = self._clock()
        if "importing" in said:
            self._feed(ev.Importing(now, said["importing"]))
        elif "ready" in said:
            self._feed(ev.ZygoteUp(now, said["shared"]))
        elif "failed" in said:
            self._feed(ev.Failed(now, said["failed"]))
        elif "born" in said:
            init = said.get("init", 0)
            self._roots[said["born"]] = (said["pid"], init) if init else (said["pid"],)
            self._meet(said["born"])
        elif "stuck" in said:
            self._feed(ev.Unkilled(now, said["stuck"]))
        else:
            death = ev.ChildDead(now, said.pop("dead"), **said)
            self._hear_last_words(death.child)
            self._bury(death.child)
            self._feed(death)

    def _hear_last_words(self, child: int) -> None:
        """What a dead child said may lie unread behind the news of its death."""
        tether = self._tethers.get(child)
        while tether is not None and self._hear_child(child, tether) and child in self._tethers:
            pass

    def _hear_child(self, child: int, tether: socket.socket) -> bool:
        """Take one message of a child; whether there was one."""
        try:
            data, extra = messages.receive(tether)
        except BlockingIOError:
            return False
        except OSError:
            data, extra = b"", None
        try:
            self._allowed[child].spend(self._clock(), len(data))
            of_session = self._kinds[child] is ChildKind.SESSION
            said = messages.parse(data, messages.OF_CHILD if of_session else messages.OF_SERVICE)
            if not of_session and self.on_service is not None:
                extra = self.on_service(child, said, extra)
            elif "printed" in said and extra is not None:
                extra = self._last_words.keep(child, extra)
            self._take(child, said)
        except (ProtocolError, KeyError):
            kind = self._kinds.get(child)
            self._forget(child)  # it is gone, or user code has written to it
            if kind is not ChildKind.SESSION:
                self.kill(child)
        if extra is not None:
            os.close(extra)
        return True

    def _take(self, child: int, said: dict[str, Any]) -> None:
        """One message of a child. Raises KeyError for what no child says."""
        now = self._clock()
        if "printed" in said:
            pass  # the descriptor beside it is all
        elif "importing" in said:
            self._feed(ev.Importing(now, said["importing"], child))
        elif "ready" in said:
            self._ready.add(child)
            self._meet(child)
        elif "failed" in said and child not in self._ready:
            self._feed(ev.Failed(now, said["failed"]))
        elif "opened" in said:
            self._feed(ev.SessionOpened(now, child))
        elif "limit_s" in said:
            self._feed(ev.LimitAsked(now, child, said["limit_s"]))
        elif self._kinds[child] is ChildKind.SESSION:
            outcome = said["outcome"] if said["outcome"] in OUTCOMES else "closed"
            self._feed(ev.ChildDone(now, child, outcome, said.get("removed", ())))

    def _meet(self, child: int) -> None:
        """A child can be used when it waits, and its zygote has told its number: what it says itself proves nothing."""
        if child in self._ready and child in self._roots:
            self._feed(ev.ChildReady(self._clock(), child))

    def _bury(self, child: int) -> None:
        self._roots.pop(child, None)
        self._kills.pop(child, None)
        self._ready.discard(child)
        self._forget(child)

    def _forget(self, child: int) -> None:
        self._allowed.pop(child, None)
        self._kinds.pop(child, None)
        self._last_words.tell(child)
        self._prints.flush()
        tether = self._tethers.pop(child, None)
        if tether is not None:
            self._loop.remove(tether.fileno())
            tether.close()

    # The end of a zygote

    def _lost(self) -> None:
        if self._control is not None:
            self._loop.remove(self._control.fileno())
            self._control.close()
            self._control = None
        for child in {*self._tethers, *self._roots}:
            self._bury(child)
        self.kill_zygote()
        self._sweeping = True

    def due(self) -> float | None:
        """When :meth:`look` is wanted."""
        if self._sweeping:
            return self._clock() + RESCAN_S
        return self._clock() + STUCK_S if self._orphans.stuck else None

    def look(self) -> None:
        """A burst of killing what a dead zygote has left behind; later, whether what was stuck has ended."""
        before = self._orphans.stuck.copy()
        if not self._sweeping:
            self._orphans.collect_stuck()
        elif self._sweep():
            self._sweeping = False
            names, self._orphans.names = self._orphans.names, []
            self._feed(ev.ZygoteDown(self._clock(), tuple(sorted(names)[: messages.MAX_NAMES])))
        if self._orphans.stuck != before:
            self._feed(ev.Unkilled(self._clock(), tuple(self._orphans.stuck.values())))

    def _sweep(self) -> bool:
        """Whether nothing is left below this process but what is stuck."""
        return self._orphans.burst(self._spared)

    def _spared(self, dead: list[processes.Dead]) -> frozenset[int]:
        if any(one.pid == self._zygote for one in dead):
            self._zygote = None
        return frozenset()

    def leave(self) -> None:
        """End the zygote, and everything below it, before the server itself ends."""
        if self._control is not None:
            self._loop.remove(self._control.fileno())
            self._control.close()
            self._control = None
        by_itself, by_force = (time.monotonic() + span for span in LEAVE_S)
        while time.monotonic() < by_itself and processes.children(os.getpid()):
            processes.reap()
            time.sleep(RESCAN_S)
        while time.monotonic() < by_force and not self._sweep():
            time.sleep(RESCAN_S)
        self._prints.close()


def _allowance(kind: ChildKind, now: float) -> messages.Allowance:
    if kind is ChildKind.SESSION:
        return messages.Allowance(now, messages.ALLOWED)
    return messages.Allowance(now, messages.ALLOWED_OF_SERVICE, messages.ALLOWED_S)
