"""The supervisor's end of its other processes: the zygote, and the control sockets of the children.

When the zygote dies, so do its children (PR_SET_PDEATHSIG); what they leave behind is killed before that is told.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rpcsys.errors import ProtocolError
from rpcsys.server.sandbox import launch, messages, processes
from rpcsys.server.sandbox.messages import ChildKind, Job
from rpcsys.server.sandbox.processes import RESCAN_S, Orphans
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.child_output import ChildOutput, CrashOutput
from rpcsys.server.supervisor.loop import Loop
from rpcsys.wire.control import OUTCOMES

LEAVE_S = (1.0, 5.0)  # when the server ends: for the zygote to leave by itself, and then for its processes to be killed
STUCK_S = 1.0  # between two checks whether a process that no signal has ended has ended after all


@dataclass
class ChildProcess:
    """A child that was asked for."""

    kind: ChildKind
    control: socket.socket | None  # None once it is not listened to any more
    allowance: messages.Allowance
    roots: tuple[int, ...] = ()  # the numbers of its process and of its init, where it has one
    ready: bool = False
    kills: int = 0  # how often it was killed


class Spawner:
    """One zygote at a time, and its ``children`` by number.

    ``on_service`` hears what hosts and deployers say beside what sessions do: the child, its message, and a descriptor,
    which it returns if it does not take it. It raises `ProtocolError` or KeyError for what none of them says.
    """

    def __init__(self, loop: Loop, settings: dict[str, Any]) -> None:
        self.children: dict[int, ChildProcess] = {}
        self.on_service: Callable[[int, dict[str, Any], int | None], int | None] | None = None
        self._loop = loop
        self._settings = settings
        self._first = True
        self._zygote: int | None = None
        self._control: socket.socket | None = None
        self._orphans = Orphans()
        self._output = ChildOutput(loop)
        self._crashes = CrashOutput(self._output.crash)
        self._sweeping = False

    def start(self) -> None:
        """Start a zygote; an :class:`~rpcsys.server.supervisor.events.ZygoteDown` follows if that fails."""
        ours, theirs = messages.pair()
        ours.setblocking(False)
        printing = -1
        try:
            printing = self._output.open()
            self._zygote = self._launch(theirs.fileno(), printing)
        except OSError as error:
            ours.close()
            self._loop.post(ev.Failed, f"cannot start another {sys.executable}: {error.strerror}")
            self._loop.post(ev.ZygoteDown)
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
        module = "rpcsys.server.sandbox.zygote"
        if first and threading.active_count() == 1:
            return launch.copy(module, self._settings, descriptor, printing)
        return launch.start(module, self._settings, descriptor, "rpcsys-zygote", leader=True, printing=printing)

    def spawn(self, child: int, kind: ChildKind) -> None:
        """Ask for a child; without one, its death is told at once."""
        try:
            ours, theirs = messages.pair()
        except OSError:
            self._loop.post(ev.ChildDead, child, 1)
            return
        ours.setblocking(False)
        of_session = kind is ChildKind.SESSION
        allowed = (messages.ALLOWED,) if of_session else (messages.ALLOWED_OF_SERVICE, messages.ALLOWED_S)
        self.children[child] = ChildProcess(kind, ours, messages.Allowance(self._loop.now(), *allowed))
        self._loop.add(ours.fileno(), lambda: self._hear_child(child, ours))
        self._order(theirs.fileno(), spawn=child, kind=kind)
        theirs.close()

    def kill(self, child: int) -> None:
        """Have a child and everything below it killed."""
        # A zygote may be stopped, or have no turn: the second time this process kills the child itself, and sees the
        # next time whether it lives all the same.
        self._order(None, kill=child)
        # One that has been collected has a number that may be another's.
        roots = [pid for pid in self.roots(child) if processes.parent(pid) == self._zygote]
        if not roots:
            return
        process = self.children[child]
        process.kills += 1
        if process.kills > 2 and (names := processes.names(roots[:1])):
            self._loop.post(ev.Unkilled, names, child)
        if process.kills > 1:
            for pid in roots:
                processes.kill(pid)

    def kill_zygote(self) -> None:
        """Kill the zygote: :class:`~rpcsys.server.supervisor.events.ZygoteDown` follows."""
        if self._zygote is not None:
            processes.kill(self._zygote)

    def roots(self, child: int) -> tuple[int, ...]:
        """The process number of a child that waits or serves, then its init's, where it has one; none for another."""
        process = self.children.get(child)
        return () if process is None else process.roots

    def _control_of(self, child: int) -> socket.socket | None:
        process = self.children.get(child)
        return None if process is None else process.control

    def give(self, child: int, job: Job, descriptor: int | None) -> None:
        """Hand a waiting child its job. Raises OSError if the child is gone."""
        control = self._control_of(child)
        if control is None:
            raise BrokenPipeError("its process is gone")
        messages.send(control, job.to_bytes(), descriptor)

    def send_json(self, child: int, fields: dict[str, Any], descriptor: int | None = None) -> bool:
        """Send a child ``fields``; whether that could be done: one that is about to end takes nothing."""
        control = self._control_of(child)
        try:
            if control is not None:
                messages.send_json(control, descriptor, **fields)
        except OSError:
            return False
        return control is not None

    def _order(self, descriptor: int | None, **order: Any) -> None:
        if self._control is None:
            return
        try:
            messages.send_json(self._control, descriptor, **order)
        except BlockingIOError:
            # It has not taken a message for hundreds of them: it is stuck.
            self.kill_zygote()
        except OSError:
            pass  # it is dead, and its end of the socket tells so next

    # What is said

    def _hear(self) -> None:
        assert self._control is not None
        try:
            data, extra = _receive(self._control)
        except BlockingIOError:
            return
        if extra is not None:
            os.close(extra)
        try:
            self._hear_zygote(messages.parse(data, messages.OF_ZYGOTE))
        except (ProtocolError, KeyError, TypeError):
            self._lost()  # it is gone, or user code has written to it

    def _hear_zygote(self, said: dict[str, Any]) -> None:
        if "importing" in said:
            self._loop.post(ev.Importing, said["importing"])
        elif "ready" in said:
            self._loop.post(ev.ZygoteUp, said["shared"])
        elif "failed" in said:
            self._loop.post(ev.Failed, said["failed"])
        elif "born" in said:
            pid, init = said["pid"], said.get("init", 0)
            if said["born"] in self.children:
                self.children[said["born"]].roots = (pid, init) if init else (pid,)
                self._meet(said["born"])
        elif "stuck" in said:
            self._loop.post(ev.Unkilled, said["stuck"])
        else:
            death = ev.ChildDead(self._loop.now(), said.pop("dead"), **said)
            while (control := self._control_of(death.child)) is not None and self._hear_child(death.child, control):
                pass  # what it said may lie unread behind the news of its death
            self._bury(death.child)
            self._loop.events.append(death)

    def _hear_child(self, child: int, control: socket.socket) -> bool:
        """Take one message of a child; whether there was one."""
        try:
            data, extra = _receive(control)
        except BlockingIOError:
            return False
        process = self.children[child]
        of_session = process.kind is ChildKind.SESSION
        try:
            process.allowance.spend(self._loop.now(), len(data))
            said = messages.parse(data, messages.OF_CHILD if of_session else messages.OF_SERVICE)
            if not of_session and self.on_service is not None:
                extra = self.on_service(child, said, extra)
            elif "printed" in said and extra is not None:
                extra = self._crashes.keep(child, extra)
            self._take(child, process, said)
        except (ProtocolError, KeyError):
            self._forget(child)  # it is gone, or user code has written to it
            if not of_session:
                self.kill(child)
        if extra is not None:
            os.close(extra)
        return True

    def _take(self, child: int, process: ChildProcess, said: dict[str, Any]) -> None:
        """One message of a child. Raises KeyError for what no child says."""
        if "printed" in said:
            pass  # the descriptor beside it is all
        elif "importing" in said:
            self._loop.post(ev.Importing, said["importing"], child)
        elif "ready" in said:
            process.ready = True
            self._meet(child)
        elif "failed" in said and not process.ready:
            self._loop.post(ev.Failed, said["failed"])
        elif "opened" in said:
            self._loop.post(ev.SessionOpened, child)
        elif "limit_s" in said:
            self._loop.post(ev.LimitAsked, child, said["limit_s"])
        elif process.kind is ChildKind.SESSION:
            outcome = said["outcome"] if said["outcome"] in OUTCOMES else "closed"
            self._loop.post(ev.ChildDone, child, outcome, said.get("removed", ()))

    def _meet(self, child: int) -> None:
        """A child can be used when it waits, and its zygote has told its number: what it says itself proves nothing."""
        if self.children[child].ready and self.children[child].roots:
            self._loop.post(ev.ChildReady, child)

    def _bury(self, child: int) -> None:
        self._forget(child)
        self.children.pop(child, None)

    def _forget(self, child: int) -> None:
        """Listen to a child no more."""
        self._crashes.log(child)
        self._output.flush()
        control = self._control_of(child)
        if control is not None:
            self.children[child].control = None
            self._loop.remove(control.fileno())
            control.close()

    # The end of a zygote

    def _lost(self) -> None:
        self._close_control()
        for child in list(self.children):
            self._bury(child)
        self.kill_zygote()
        self._sweeping = True
        self._loop.call_at(self._loop.now(), self._scan)

    def _close_control(self) -> None:
        if self._control is not None:
            self._loop.remove(self._control.fileno())
            self._control.close()
            self._control = None

    def _scan(self) -> None:
        """A burst of killing what a dead zygote has left behind; later, whether what was stuck has ended."""
        before = self._orphans.stuck.copy()
        if not self._sweeping:
            self._orphans.collect_stuck()
        elif self._sweep():
            self._sweeping = False
            names, self._orphans.names = self._orphans.names, []
            self._loop.post(ev.ZygoteDown, tuple(sorted(names)[: messages.MAX_NAMES]))
        if self._orphans.stuck != before:
            self._loop.post(ev.Unkilled, tuple(self._orphans.stuck.values()))
        if self._sweeping or self._orphans.stuck:
            self._loop.call_at(self._loop.now() + (RESCAN_S if self._sweeping else STUCK_S), self._scan)

    def _sweep(self) -> bool:
        """Whether nothing is left below this process but what is stuck."""
        return self._orphans.burst(self._spared)

    def _spared(self, dead: list[processes.Dead]) -> frozenset[int]:
        if any(one.pid == self._zygote for one in dead):
            self._zygote = None
        return frozenset()

    def leave(self) -> None:
        """End the zygote, and everything below it, before the server itself ends."""
        self._close_control()
        by_itself, by_force = (time.monotonic() + span for span in LEAVE_S)
        while time.monotonic() < by_itself and processes.children(os.getpid()):
            processes.reap()
            time.sleep(RESCAN_S)
        while time.monotonic() < by_force and not self._sweep():
            time.sleep(RESCAN_S)
        self._output.close()


def _receive(sock: socket.socket) -> tuple[bytes, int | None]:
    """One message; an empty one from a socket that broke. Raises BlockingIOError."""
    try:
        return messages.receive(sock)
    except BlockingIOError:
        raise
    except OSError:
        return b"", None
