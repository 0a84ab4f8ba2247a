"""The zygote: holds what sessions need already imported, forks the children, and cleans up after them.

It holds no client's descriptor, and its imports start no thread: no lock of theirs is held across a fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import AbstractSet, Any, Callable, NamedTuple, NoReturn

from rpcsys.server import capabilities
from rpcsys.server.sandbox import (
    cgroups,
    child,
    ipc_cleanup,
    launch,
    limits,
    messages,
    mount_namespace,
    pid_namespace,
    preload,
    privileges,
    processes,
    work_folders,
)

CLEAR_S, CLEAR_TRIES = 0.05, 100  # between two tries to remove cgroups after a death, and how many there are
LEAVE_TIMEOUT_S = 5.0  # for everything to be dead that is below a zygote whose supervisor is gone


def main(settings: dict[str, Any]) -> NoReturn:
    """The life of a zygote in its own interpreter; ``settings`` are what the supervisor's service makes."""
    control = socket.socket(fileno=launch.HANDED)
    control.set_inheritable(False)
    reaper = processes.become_subreaper()
    where = settings["folder"], settings["read_only"]
    shared = mount_namespace.probe(*where) if settings["isolate"] else "--no-isolation"
    if shared and settings["read_only"]:
        messages.send_json(control, failed=f"--read-only: sessions get no mounts of their own here ({shared})")
        os._exit(0)
    # An init becomes this process's child only where there are subreapers: qemu 7 knows none.
    own_pids = bool(reaper and not shared and not mount_namespace.probe(*where, own_pids=True))
    settings = {**settings, "isolate": not shared, "own_pids": own_pids, "host_mounts": pid_namespace.mounts()}
    zygote = Zygote(control, settings)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _prepare(settings, control, zygote)
        messages.send_json(control, ready=True, shared=shared)
        zygote.run()
    zygote.leave()


def _prepare(settings: dict[str, Any], control: socket.socket, zygote: Zygote) -> None:
    """What children are forked with. An import may take for ever; the supervisor's end is heard of all the same."""
    before = signal.signal(signal.SIGTERM, lambda *_: zygote.leave())
    processes.die_with_parent(settings["supervisor"], signal.SIGTERM)
    try:
        if settings["fork"]:
            preload.own(settings)
            capabilities.warm()
        launch.freeze()
        zygote.start_maker()
        if settings["fork"]:
            preload.everything(settings, control)
            if settings["confined"]:
                privileges.bound(privileges.kept(settings["read_only"]))
        processes.die_with_parent(settings["supervisor"], 0)
        signal.signal(signal.SIGTERM, before)
    except ImportError as error:
        messages.send_json(control, failed=str(error))
        os._exit(0)
    launch.freeze()


class DeadChild(NamedTuple):
    """A child that is dead; see :class:`rpcsys.server.supervisor.events.ChildDead`."""

    child: int
    status: int
    starved: bool


class Zygote:
    """The children and their ends; the subreaper of everything below it.

    Where it can, it makes each child in a PID namespace with an init, and the kernel kills all of it at once. Elsewhere
    a child of its own that it did not make is an orphan of a dead session, and is killed until no scan finds another. A
    child counts as dead only when nothing that descended from it is left.
    """

    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self.control = control
        self.settings = settings
        self._known: dict[int, int] = {}  # process number, of a child's own process or its init -> child
        self._inits: dict[int, int] = {}  # child -> process number of its init
        self._over: dict[int, DeadChild] = {}  # children whose own process is dead and whose init is not yet
        self._ended: list[DeadChild] = []  # dead ones, whose descendants may not be
        self._sessions: set[int] = set()  # children that are made for sessions
        self._maker: pid_namespace.InitMaker | None = None
        self._helpers: frozenset[int] = frozenset()  # processes that modules of --import have started
        self._orphans = processes.Orphans()
        self._reported_stuck: list[str] = []
        self._cleaned: dict[int, list[str]] = {}  # what else of a child had to be killed, by name
        self._removed: dict[int, list[str]] = {}  # shared memory and the like that vanished with it
        self._held = [held for held in (work_folders.hold(settings["folder"]),) if held >= 0]
        self._held += cgroups.hold(settings["cgroups"])
        self._clear_tries = CLEAR_TRIES if settings["cgroups"] else 0  # an earlier zygote may have left some
        self._deaths, self._wakeup = socket.socketpair()
        self._deaths.setblocking(False)
        self._wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)

    def start_maker(self) -> None:
        """Children get PID namespaces where they can. What makes inits is no larger than this process is now."""
        if self.settings["own_pids"]:
            self._maker = pid_namespace.InitMaker(self._close_own)

    def run(self) -> None:
        """Serve the supervisor until it is gone."""
        self._helpers = frozenset(processes.children(os.getpid()))
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self._deaths, select.POLLIN)
        while True:
            timeout_s = processes.RESCAN_S if self._ended else CLEAR_S if self._clear_tries else None
            ready = [descriptor for descriptor, _ in poll.poll(timeout_s and timeout_s * 1000)]
            if self._deaths.fileno() in ready:
                self._deaths.recv(4096)
            self._collect()
            self._clear_cgroups()
            if self.control.fileno() in ready and not self._take_order():
                return

    def _take_order(self) -> bool:
        """Take one order; False when there will be no more."""
        data, child_control = messages.receive(self.control)
        if not data:
            return False
        order = json.loads(data)
        if "spawn" in order and child_control is not None:
            self._spawn(order["spawn"], order["kind"], child_control)
        for pid, number in self._known.items():
            if number == order.get("kill") and pid != self._inits.get(number):
                self._kill(pid, number)
        return True

    def _kill(self, pid: int, number: int) -> None:
        """Kill a child, whose namespaces vanish with it: what is in them is noted first."""
        if self.settings["isolate"] and number in self._sessions:
            self._removed[number] = ipc_cleanup.seen(self.settings, f"/proc/{pid}/root")
        self._end_others(number, pid)
        processes.kill(pid)

    def _end_others(self, number: int, *pids: int) -> None:
        """Kill what is in the PID namespace of a child, noting names: below ``pids``, and what had lost its parent."""
        if number in self._inits and number not in self._cleaned:  # else that is done, and they may not be dead yet
            init = self._inits[number]
            self._cleaned[number] = list(processes.names(limits.members((*pids, init))[1:]))
            processes.kill(init)

    # Making children

    def _spawn(self, number: int, kind: str, child_control: int) -> None:
        """Make a child; with ``--no-fork`` a fresh interpreter."""
        if kind == messages.ChildKind.SESSION:
            self._sessions.add(number)
        try:
            pid = self._make(number, child_control)
            self._known[pid] = number
            messages.send_json(self.control, born=number, pid=pid, init=self._inits.get(number, 0))
        except OSError as error:
            # Too many processes, or no memory: the supervisor tries again after a pause.
            sys.stderr.write(f"rpcsys-server: no session process: {error.strerror}\n")
            self._ended.append(DeadChild(number, 1, False))
        finally:
            os.close(child_control)

    def _make(self, number: int, child_control: int) -> int:
        """Start a child's process, with an init of its own if it can have one; its process number. Raises OSError."""
        settings, folders = self.settings, self.settings["cgroups"]
        if number not in self._sessions:
            settings, folders = {**settings, "shared": settings["deploy"]}, {}
        elif not _in_cgroup(lambda: cgroups.make(folders, number, settings["memory"])):
            folders = {}

        def start(other: int = -1) -> int:
            if not settings["fork"]:
                own = {**settings, "parent": os.getpid()}
                pid = launch.start("rpcsys.server.sandbox.child", own, child_control, "rpcsys-session")
                _in_cgroup(lambda: cgroups.enter(folders, number, pid))
                return pid
            pid = processes.fork()
            if not pid:
                if other >= 0:
                    os.close(other)
                _in_cgroup(lambda: cgroups.enter(folders, number))
                self._become_child(child_control, settings)
            return pid

        if self._maker is None:
            return start()
        init = self._maker.make_init()
        pid = self._maker.start_below(init, start)
        self._known[init], self._inits[number] = number, init
        return pid

    def _become_child(self, child_control: int, settings: dict[str, Any]) -> NoReturn:
        """In the child, right after the fork: close all that is the zygote's, then live."""
        try:
            processes.finish_fork()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            parent = os.getppid()
            self._close_own()
            if self._maker is not None:
                self._maker.close_own()
            child.run(socket.socket(fileno=child_control), settings, parent, child.enter_namespaces(settings))
        finally:
            os._exit(1)

    def _close_own(self) -> None:
        """In a copy of this process: close what is its alone. By some of that the supervisor sees that it is gone."""
        for own in (self.control, self._deaths, self._wakeup):
            own.close()
        while self._held:
            os.close(self._held.pop())  # a way to the directories of others, and out of the limits

    # Their ends

    def _collect(self) -> None:
        """Collect the dead; kill what they left behind; report those of whom nothing is left."""
        if self._orphans.burst(self._spared):
            self._report()
        stuck = list(self._orphans.stuck.values())[: messages.MAX_NAMES]
        if stuck != self._reported_stuck:
            self._reported_stuck = stuck
            messages.send_json(self.control, stuck=stuck)

    def _spared(self, dead: list[processes.Dead]) -> AbstractSet[int]:
        """Note the dead; the processes that are no orphans. Before a child has died nobody is one."""
        for one in dead:
            number = self._known.pop(one.pid, None)
            if number is not None:
                self._note_death(number, one)
        if not self._ended:
            return frozenset(processes.children(os.getpid()))
        makers = frozenset() if self._maker is None else frozenset([self._maker.pid])
        return self._known.keys() | self._helpers | makers

    def _note_death(self, number: int, one: processes.Dead) -> None:
        """A child is dead when both its own process and its init are: the kernel then has ended all of it."""
        if self._inits.get(number) == one.pid:
            del self._inits[number]
        else:
            self._over[number] = DeadChild(number, one.status, self._starved(number, one))
            self._end_others(number)
        if number in self._over and number not in self._inits:
            self._ended.append(self._over.pop(number))
            if self.settings["cgroups"]:
                self._clear_tries = CLEAR_TRIES
                if not self.settings["own_pids"]:  # else nothing of it lives on
                    cgroups.kill(self.settings["cgroups"], number)

    def _starved(self, number: int, one: processes.Dead) -> bool:
        """Whether the kernel says so, or a child came near its limit, beside what it had from here."""
        limit = self.settings["memory"]
        if limit is None or one.status == 0:
            return False
        if cgroups.starved(self.settings["cgroups"], number, one.status == -signal.SIGKILL):
            return True
        return bool(one.peak > limits.inherited() + limits.NEARLY * limit)

    def _report(self) -> None:
        for number, status, starved in self._ended:
            others, self._orphans.names = self._orphans.names, []
            cleaned = sorted([*self._cleaned.pop(number, ()), *others])[: messages.MAX_NAMES]
            removed = self._removed.pop(number, [])
            self._sessions.discard(number)
            messages.send_json(
                self.control, dead=number, status=status, starved=starved, cleaned=cleaned, removed=removed
            )
        self._ended = []

    def leave(self) -> NoReturn:
        """The supervisor is gone, perhaps killed: so is everything below, then the directories, then this process."""
        until = time.monotonic() + LEAVE_TIMEOUT_S
        while not self._orphans.burst(lambda _: frozenset()) and time.monotonic() < until:
            time.sleep(processes.RESCAN_S)
        for _ in work_folders.removal(self.settings["folder"]):
            pass
        if os.getppid() != self.settings["supervisor"]:  # else it has use for them, or removes them itself
            cgroups.finish(self.settings["cgroups"])
        os._exit(0)

    def _clear_cgroups(self) -> None:
        if self._clear_tries and not self._ended:
            gone = cgroups.clear(self.settings["cgroups"], frozenset(self._known.values()))
            self._clear_tries = 0 if gone else self._clear_tries - 1


def _in_cgroup(act: Callable[[], None]) -> bool:
    """Whether ``act`` is done; that it is refused is said."""
    try:
        act()
        return True
    except OSError as error:
        sys.stderr.write(f"rpcsys-server: a session has no cgroup ({error.strerror}): polling holds its limits\n")
        sys.stderr.flush()
        return False
