"""The supervisor's side of the zygote and of the children's control sockets.

When the zygote dies, its children die too (PR_SET_PDEATHSIG). The supervisor kills their descendants, then posts it.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rpcsys.errors import ProtocolError
from rpcsys.server.sandbox import launch, messages, preload, processes
from rpcsys.server.sandbox.messages import ChildKind, Job
from rpcsys.server.sandbox.processes import RESCAN_S, Orphans
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.child_output import ChildOutput, CrashOutput
from rpcsys.server.supervisor.loop import Loop
from rpcsys.wire.outcomes import OUTCOMES

LEAVE_S = (1.0, 5.0)  # at the server's end: time for the zygote to exit by itself; time until all is killed
STUCK_S = 1.0  # seconds between two checks of processes that survived a SIGKILL
_FIELDS = {
    ChildKind.HOST: messages.OF_SERVICE,
    ChildKind.DEPLOYER: messages.OF_SERVICE,
    ChildKind.FRONT: messages.OF_FRONT,
    ChildKind.CANARY: messages.OF_CANARY,
}


@dataclass
class ChildProcess:
    """A child that the zygote makes, or has made."""

    kind: ChildKind
    control: socket.socket | None  # None once the supervisor has closed it
    allowance: messages.Allowance
    roots: tuple[int, ...] = ()  # the PIDs of its process and of its init, if it has one
    zygote: int = 0  # the PID of the zygote that has made it
    ready: bool = False
    kills: int = 0  # how often it was killed


class Spawner:
    """One zygote at a time, and its ``children`` by number.

    ``on_service(child, message, descriptor)`` receives the messages of hosts and deployers, ``on_front`` a front's. It
    returns the descriptor if it does not keep it, and raises `ProtocolError` or KeyError for a message that they never
    send.
    """

    def __init__(self, loop: Loop, settings: dict[str, Any]) -> None:
        self.children: dict[int, ChildProcess] = {}
        self.on_service: Callable[[int, dict[str, Any], int | None], int | None] | None = None
        self.on_front: Callable[[int, dict[str, Any], int | None], int | None] | None = None
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
        """Start a zygote. On failure, :class:`~rpcsys.server.supervisor.events.ZygoteDown` follows."""
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
        self._loop.add(ours.fileno(), self._read_zygote)

    def _launch(self, descriptor: int, printing: int) -> int:
        """Start a zygote process; its PID. The first is a fork of this process, which has one thread and no secrets."""
        first, self._first = self._first, False
        module = "rpcsys.server.sandbox.zygote"
        if first and threading.active_count() == 1:
            if self._settings["fork"]:
                preload.ahead(self._settings)  # here, so that both processes share the pages that it changes
            return launch.copy(module, self._settings, descriptor, printing)
        return launch.start(module, self._settings, descriptor, "rpcsys-zygote", leader=True, printing=printing)

    def spawn(self, child: int, kind: ChildKind, at_once: bool = False) -> None:
        """Have the zygote make a child. If that fails, its `ChildDead` is posted at once."""
        try:
            ours, theirs = messages.pair()
        except OSError:
            self._loop.post(ev.ChildDead, child, 1)
            return
        ours.setblocking(False)
        self.children[child] = ChildProcess(kind, ours, messages.Allowance(self._loop.now(), *_allowed(kind)))
        self._loop.add(ours.fileno(), lambda: self._read_child(child, ours))
        self._order(theirs.fileno(), spawn=child, kind=kind, at_once=at_once)
        theirs.close()

    def kill(self, child: int) -> None:
        """Have the zygote kill a child with its descendants."""
        # The zygote may be stopped, or starved of CPU time. So the second call kills the child from here, and the
        # third reports it if it is still alive.
        self._order(None, kill=child)
        process = self.children.get(child)
        if process is None:
            return
        # The PID of a collected child may belong to another process: only its zygote's own children are killed.
        roots = [pid for pid in process.roots if processes.parent(pid) == process.zygote]
        if not roots:
            return
        process.kills += 1
        if process.kills > 2 and (names := processes.names(roots[:1])):
            self._loop.post(ev.Unkilled, names, child)
        if process.kills > 1 or process.kind is ChildKind.CANARY:  # a user waits while a canary runs
            for pid in roots:
                processes.kill(pid)

    def kill_zygote(self) -> None:
        """Kill the zygote: :class:`~rpcsys.server.supervisor.events.ZygoteDown` follows."""
        if self._zygote is not None:
            processes.kill(self._zygote)

    def roots(self, child: int) -> tuple[int, ...]:
        """The PID of a child that waits or serves, then that of its init, if it has one; empty for any other child."""
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
        """Send ``fields`` to a child; whether it was possible. A child that is about to end accepts no message."""
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
            # Hundreds of messages wait for it: it hangs.
            self.kill_zygote()
        except OSError:
            pass  # it is dead, and its socket reports that next

    # Messages of the zygote and of children

    def _read_zygote(self) -> None:
        assert self._control is not None
        try:
            data, extra = _receive(self._control)
        except BlockingIOError:
            return
        if extra is not None:
            os.close(extra)
        try:
            self._handle_zygote(messages.parse(data, messages.OF_ZYGOTE))
        except (ProtocolError, KeyError, TypeError):
            self._lost()  # the zygote is dead, or user code has written to its socket

    def _handle_zygote(self, message: dict[str, Any]) -> None:
        if "importing" in message:
            self._loop.post(ev.Importing, message["importing"], message.get("child"))
        elif "ready" in message:
            self._loop.post(ev.ZygoteUp, message["shared"])
        elif "failed" in message:
            self._loop.post(ev.Failed, message["failed"], message.get("child"))
        elif "born" in message:
            pid, init = message["pid"], message.get("init", 0)
            if message["born"] in self.children:
                process = self.children[message["born"]]
                process.roots, process.zygote = (pid, init) if init else (pid,), message["zygote"]
                self._check_ready(message["born"])
        elif "stuck" in message:
            self._loop.post(ev.Unkilled, message["stuck"])
        else:
            death = ev.ChildDead(self._loop.now(), message.pop("dead"), **message)
            while (control := self._control_of(death.child)) is not None and self._read_child(death.child, control):
                pass  # its last messages may be unread when the zygote reports its death
            self._remove(death.child)
            self._loop.events.append(death)

    def _read_child(self, child: int, control: socket.socket) -> bool:
        """Read and handle one message of a child; whether there was one."""
        try:
            data, extra = _receive(control)
        except BlockingIOError:
            return False
        process = self.children[child]
        of_session = process.kind.of_session
        try:
            process.allowance.spend(self._loop.now(), len(data))
            message = messages.parse(data, _FIELDS.get(process.kind, messages.OF_CHILD))
            hear = self.on_front if process.kind is ChildKind.FRONT else self.on_service
            if not of_session and hear is not None and process.kind is not ChildKind.CANARY:
                extra = hear(child, message, extra)
            elif "printed" in message and extra is not None:
                extra = self._crashes.keep(child, extra)
            self._take(child, process, message)
        except (ProtocolError, KeyError):
            self._forget(child)  # the child is dead, or user code has written to its socket
            if not of_session:
                self.kill(child)
        if extra is not None:
            os.close(extra)
        return True

    def _take(self, child: int, process: ChildProcess, message: dict[str, Any]) -> None:
        """Post the event of a child's message. Raises KeyError for a message that no child sends."""
        if "printed" in message:
            pass  # the descriptor is handled above
        elif "importing" in message:
            self._loop.post(ev.Importing, message["importing"], child)
        elif "ready" in message:
            process.ready = True
            self._check_ready(child)
        elif "failed" in message and not process.ready:
            self._loop.post(ev.Failed, message["failed"], child)
        elif "opened" in message:
            self._loop.post(ev.SessionOpened, child)
        elif "held" in message:
            self._loop.post(ev.Held, child)
        elif "limit_s" in message:
            self._loop.post(ev.LimitAsked, child, message["limit_s"])
        elif "canary" in message:
            taken = (message[name] for name in ("canary", "seconds", "disturbed", "throttled"))
            self._loop.post(ev.CanaryDone, child, *taken)
        elif "unfit" in message:
            self._loop.post(ev.CanaryDone, child, why=message["unfit"])
        elif process.kind.of_session:
            outcome = message["outcome"] if message["outcome"] in OUTCOMES else "closed"
            self._loop.post(ev.ChildDone, child, outcome, message.get("removed", ()), message.get("why", ""))
            if process.control is not None:
                self._loop.remove(process.control.fileno())  # what else it sends is read when its death is reported

    def _check_ready(self, child: int) -> None:
        """Post `ChildReady` if the child waits and the zygote has sent its PID; the child's message proves nothing."""
        if self.children[child].ready and self.children[child].roots:
            self._loop.post(ev.ChildReady, child)

    def _remove(self, child: int) -> None:
        self._forget(child)
        self.children.pop(child, None)

    def _forget(self, child: int) -> None:
        """Close a child's control socket and log its last output."""
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
            self._remove(child)
        self.kill_zygote()
        self._sweeping = True
        self._loop.call_at(self._loop.now(), self._scan)

    def _close_control(self) -> None:
        if self._control is not None:
            self._loop.remove(self._control.fileno())
            self._control.close()
            self._control = None

    def _scan(self) -> None:
        """Kill what a dead zygote left, in one short burst; after that, check the processes that survived."""
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
        """Kill processes below this one; whether only those that survive a SIGKILL are left."""
        return self._orphans.burst(self._spared)

    def _spared(self, dead: list[processes.Dead]) -> frozenset[int]:
        if any(one.pid == self._zygote for one in dead):
            self._zygote = None
        return frozenset()

    def leave(self) -> None:
        """End the zygote and every process below it, before the server ends."""
        self._close_control()
        by_itself, by_force = (time.monotonic() + span for span in LEAVE_S)
        while time.monotonic() < by_itself and processes.children(os.getpid()):
            processes.reap()
            time.sleep(RESCAN_S)
        while time.monotonic() < by_force and not self._sweep():
            time.sleep(RESCAN_S)
        self._output.close()


def _allowed(kind: ChildKind) -> tuple[float, ...]:
    """How many messages a child may send, and in how many seconds where that is not in all."""
    if kind is ChildKind.FRONT:  # it runs no code of users, and strangers have it send two for each connection
        return (math.inf,)
    return (messages.ALLOWED,) if kind.of_session else (messages.ALLOWED_OF_SERVICE, messages.ALLOWED_S)


def _receive(sock: socket.socket) -> tuple[bytes, int | None]:
    """Read one message and its descriptor; an empty message if the socket is broken. Raises BlockingIOError."""
    try:
        return messages.receive(sock)
    except BlockingIOError:
        raise
    except OSError:
        return b"", None
