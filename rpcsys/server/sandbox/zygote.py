"""The zygote: holds what sessions need already imported, forks the children, and cleans up after them.

It opens no session, pool or driver and holds no client's descriptor. It is the subreaper of everything
below it. Where it can, it makes each child in a PID namespace with an init (:mod:`rpcsys.server.sandbox.pid_namespace`), and the kernel
kills all of it at once. Elsewhere a child of its own that it did not make is an orphan of a dead session, and is killed until no look
finds another. Either way a child counts as dead only when nothing that descended from it is left.

When its control socket ends, its supervisor is gone (perhaps killed): it kills everything below it,
removes the sessions' directories, and leaves.

numpy and onnxruntime start threads when imported; they are told to start none here, and only plain
code runs between fork and session, so that no lock of theirs can be held across a fork.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from typing import AbstractSet, Any, NamedTuple, NoReturn

from rpcsys.server import capabilities
from rpcsys.server.sandbox import (
    cgroups,
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
from rpcsys.server.sandbox.child import live
from rpcsys.server.sandbox.libc import fork, mend
from rpcsys.server.sandbox.orphans import AGAIN_S, Orphans

EMPTYING_S, EMPTYING = 0.05, 100
"""Between two tries to remove cgroups whose processes are dead, and how many tries there are after each death."""

LEAVE_S = 5.0
"""For everything to be dead that is below a zygote whose supervisor is gone."""


def main(settings: dict[str, Any]) -> NoReturn:
    """The life of a zygote in its own interpreter. ``settings``: see :func:`rpcsys.server.supervisor.service.settings`."""
    control = socket.socket(fileno=launch.HANDED)
    control.set_inheritable(False)
    reaper = processes.become_subreaper()
    shared = "--no-isolation"
    if settings["isolate"]:
        shared = mount_namespace.probe(settings["folder"], settings["read_only"])
    if shared and settings["read_only"]:
        messages.tell(control, failed=f"--read-only: sessions get no mounts of their own here ({shared})")
        os._exit(0)
    # An init becomes this process's child only where there are subreapers: qemu 7 knows none.
    own_pids = bool(
        reaper and not shared and not mount_namespace.probe(settings["folder"], settings["read_only"], own_pids=True)
    )
    settings = {**settings, "isolate": not shared, "own_pids": own_pids, "left": pid_namespace.mounts()}
    zygote = Zygote(control, settings)
    try:
        _prepare(settings, control, zygote)
        messages.tell(control, ready=True, shared=shared)
        zygote.run()
    except (BrokenPipeError, ConnectionResetError):
        pass
    zygote.leave()


def _prepare(settings: dict[str, Any], control: socket.socket, zygote: Zygote) -> None:
    """What children are forked with. An import may take for ever; the supervisor's end is heard of all the same."""
    supervisor = settings["supervisor"]
    before = signal.signal(signal.SIGTERM, lambda *_: zygote.leave())
    processes.hear_of_the_end_of(supervisor, signal.SIGTERM)
    try:
        if settings["fork"]:
            preload.own(settings)
            capabilities.warm()
        _freeze()
        zygote.have_inits()
        if settings["fork"]:
            preload.everything(settings, control)
            if settings["confined"]:
                privileges.bound(privileges.kept(settings["read_only"]))
        processes.hear_of_the_end_of(supervisor, 0)
        signal.signal(signal.SIGTERM, before)
    except ImportError as error:
        messages.tell(control, failed=str(error))
        os._exit(0)
    _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


class Ended(NamedTuple):
    """A child that is dead; see :class:`rpcsys.server.supervisor.events.ChildDead`."""

    child: int
    status: int
    starved: bool


class Zygote:
    """The children and their ends.

    ``known``: children by the numbers of their own processes and of their inits; ``inits``: the number of a child's init;
    ``over``: children whose own process is dead and whose init is not yet; ``ended``: dead ones, whose descendants may not be;
    ``helpers``: processes that modules of ``--import`` have started, which are no session's; ``cleaned``: what else of a child
    had to be killed, by name, and ``removed``: shared memory and the like that vanished with it; ``sessions``: children for those.
    """

    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self.control = control
        self.settings = settings
        self.known: dict[int, int] = {}
        self.inits: dict[int, int] = {}
        self.over: dict[int, Ended] = {}
        self._inits: pid_namespace.Inits | None = None
        self.helpers: frozenset[int] = frozenset()
        self.sessions: set[int] = set()
        self.ended: list[Ended] = []
        self._orphans = Orphans()
        self._told_stuck: list[str] = []
        self.cleaned: dict[int, list[str]] = {}
        self.removed: dict[int, list[str]] = {}
        self._held = [held for held in (work_folders.hold(settings["folder"]),) if held >= 0]
        self._held += cgroups.hold(settings["cgroups"])
        self._emptying = EMPTYING if settings["cgroups"] else 0  # an earlier zygote may have left some
        self._deaths, self._wakeup = socket.socketpair()
        for end in (self._deaths, self._wakeup):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)

    def have_inits(self) -> None:
        """Children get PID namespaces where they can. What makes inits is no larger than this process is now."""
        if self.settings["own_pids"]:
            self._inits = pid_namespace.Inits(self._let_go)

    def run(self) -> None:
        """Serve the supervisor until it is gone."""
        self.helpers = frozenset(processes.children(os.getpid()))
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self._deaths, select.POLLIN)
        while True:
            again = AGAIN_S if self.ended else EMPTYING_S if self._emptying else None
            ready = poll.poll(None if again is None else again * 1000)
            descriptors = [descriptor for descriptor, _ in ready]
            if self._deaths.fileno() in descriptors:
                self._deaths.recv(4096)
            self.bury()
            self._empty()
            if self.control.fileno() in descriptors and not self.obey():
                return

    def obey(self) -> bool:
        """Take one order; False when there will be no more."""
        data, tether = messages.receive(self.control)
        if not data:
            return False
        order = json.loads(data)
        if "spawn" in order and tether is not None:
            self.spawn(order["spawn"], order["kind"], tether)
        for pid, child in self.known.items():
            if child == order.get("kill") and pid != self.inits.get(child):
                self.kill(pid, child)
        return True

    def kill(self, pid: int, child: int) -> None:
        """Kill a child, whose namespaces vanish with it: what is in them is noted first.

        Without a PID namespace, what is below it becomes ours by that, and is seen when it is buried.
        """
        if self.settings["isolate"] and child in self.sessions:
            self.removed[child] = ipc_cleanup.seen(self.settings, f"/proc/{pid}/root")
        self._end_others(child, pid)
        processes.kill(pid)

    def _end_others(self, child: int, *pids: int) -> None:
        """Kill what is in the PID namespace of a child, noting its name: what is below ``pids``, and what had lost its parent."""
        if child in self.inits:
            init = self.inits[child]
            self.cleaned.setdefault(child, []).extend(processes.names(limits.members((*pids, init))[1:]))
            processes.kill(init)

    def spawn(self, child: int, kind: str, tether: int) -> None:
        """Make a child; with ``--no-fork`` a fresh interpreter."""
        if kind == messages.ChildKind.SESSION:
            self.sessions.add(child)
        try:
            pid = self._make(child, tether)
            self.known[pid] = child
            messages.tell(self.control, born=child, pid=pid, init=self.inits.get(child, 0))
        except OSError as error:
            # Too many processes, or no memory: the supervisor tries again after a pause.
            sys.stderr.write(f"rpcsys-server: no session process: {error.strerror}\n")
            self.ended.append(Ended(child, 1, False))
        finally:
            os.close(tether)

    def _make(self, child: int, tether: int) -> int:
        """Start the process of a child, with an init of its own if it can have one; its number. Raises OSError."""
        folders = self._grouped(child)
        settings = self.settings if child in self.sessions else {**self.settings, "shared": self.settings["deploy"]}

        def process(other: int = -1) -> int:
            if not self.settings["fork"]:
                mine = {**settings, "parent": os.getpid()}
                pid = launch.start("rpcsys.server.sandbox.child", mine, tether, "rpcsys-session")
                _enter(folders, child, pid)
                return pid
            pid = fork()
            if not pid:
                if other >= 0:
                    os.close(other)
                _enter(folders, child)
                self._become_child(tether, settings)
            return pid

        if self._inits is None:
            return process()
        init = self._inits.open()
        pid = self._inits.start_below(init, process)
        self.known[init], self.inits[child] = child, init
        return pid

    def _grouped(self, child: int) -> cgroups.Folders:
        """Make the cgroup of a session to come, where there are any; what it is to :meth:`_enter`."""
        folders: cgroups.Folders = self.settings["cgroups"] if child in self.sessions else {}
        try:
            cgroups.make(folders, child, self.settings["memory"])
        except OSError as error:
            _say_looks(error)
            return {}
        return folders

    def _empty(self) -> None:
        """Remove the cgroups of the dead, those of which the kernel has let go."""
        if self._emptying and not self.ended:
            gone = cgroups.clear(self.settings["cgroups"], frozenset(self.known.values()))
            self._emptying = 0 if gone else self._emptying - 1

    def _let_go(self) -> None:
        """In a copy of this process: close what is its alone. By the end of some the supervisor sees that it is gone."""
        for own in (self.control, self._deaths, self._wakeup):
            own.close()
        while self._held:
            os.close(self._held.pop())  # a way to the directories of others, and out of the limits

    def _become_child(self, tether: int, settings: dict[str, Any]) -> NoReturn:
        """In the child, right after the fork: let go of all that is the zygote's, then live."""
        try:
            mend()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            parent = os.getppid()
            self._let_go()
            if self._inits is not None:
                self._inits.let_go()
            live(socket.socket(fileno=tether), settings, parent)
        finally:
            os._exit(1)

    def bury(self) -> None:
        """Collect the dead; kill what they left behind; report those of whom nothing is left."""
        if self._orphans.burst(self._spared):
            self._report()
        stuck = list(self._orphans.stuck.values())[: messages.MAX_NAMES]
        if stuck != self._told_stuck:
            self._told_stuck = stuck
            messages.tell(self.control, stuck=stuck)

    def _spared(self, dead: list[processes.Dead]) -> AbstractSet[int]:
        """Note the dead; the processes that are no orphans. Before a child has died nobody is one."""
        for one in dead:
            child = self.known.pop(one.pid, None)
            if child is not None:
                self._note_death(child, one)
        if not self.ended:
            return frozenset(processes.children(os.getpid()))
        makers = frozenset() if self._inits is None else frozenset([self._inits.maker])
        return self.known.keys() | self.helpers | makers

    def _note_death(self, child: int, one: processes.Dead) -> None:
        """A child is dead when both its own process and its init are: the kernel then has ended all of it."""
        if self.inits.get(child) == one.pid:
            del self.inits[child]
        else:
            self.over[child] = Ended(child, one.status, self._starved(child, one.status, one.peak))
            self._end_others(child)
        if child in self.over and child not in self.inits:
            self.ended.append(self.over.pop(child))
            self._end_cgroup(child)

    def _report(self) -> None:
        for ended in self.ended:
            others, self._orphans.names = self._orphans.names, []
            cleaned = [*self.cleaned.pop(ended.child, ()), *others]
            self.sessions.discard(ended.child)
            messages.tell(
                self.control,
                dead=ended.child,
                status=ended.status,
                starved=ended.starved,
                cleaned=sorted(cleaned)[: messages.MAX_NAMES],
                removed=self.removed.pop(ended.child, []),
            )
        self.ended = []

    def _starved(self, child: int, status: int, peak: int) -> bool:
        """Whether the kernel says so, or a child with ``peak`` bytes resident came near its limit, beside what it had from here."""
        limit = self.settings["memory"]
        if limit is None or status == 0:
            return False
        killed = status == -signal.SIGKILL
        if cgroups.starved(self.settings["cgroups"], child, killed):
            return True
        return bool(peak > limits.inherited() + limits.NEARLY * limit)

    def _end_cgroup(self, child: int) -> None:
        """Nothing of a dead child is to live on; a PID namespace has seen to that."""
        if self.settings["cgroups"]:
            self._emptying = EMPTYING
            if not self.settings["own_pids"]:
                cgroups.kill(self.settings["cgroups"], child)

    def leave(self) -> NoReturn:
        """The supervisor is gone: so is everything below, then the directories, then this process."""
        until = time.monotonic() + LEAVE_S
        while not self._orphans.burst(lambda _: frozenset()) and time.monotonic() < until:
            time.sleep(AGAIN_S)
        for _ in work_folders.removal(self.settings["folder"]):
            pass
        if os.getppid() != self.settings["supervisor"]:  # else it has use for them, or removes them itself
            cgroups.finish(self.settings["cgroups"])
        os._exit(0)


def _enter(folders: cgroups.Folders, child: int, pid: int = 0) -> None:
    try:
        cgroups.enter(folders, child, pid)
    except OSError as error:
        _say_looks(error)


def _say_looks(error: OSError) -> None:
    sys.stderr.write(f"rpcsys-server: a session has no cgroup ({error.strerror}): looks hold its limits\n")
    sys.stderr.flush()
