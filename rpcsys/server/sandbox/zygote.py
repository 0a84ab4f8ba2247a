"""The zygote: imports once what sessions need, forks the children, and cleans up after them.

It holds no client's descriptor. Its imports start no thread, so that no lock is held across a fork.
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

from rpcsys.server.sandbox import (
    cgroups,
    child,
    governors,
    ipc_cleanup,
    launch,
    limits,
    messages,
    mount_namespace,
    network_namespace,
    pid_namespace,
    preload,
    privileges,
    processes,
    session_user,
    work_folders,
)
from rpcsys.server.sandbox.tvm_zygote import TvmZygote

CLEAR_S, CLEAR_TRIES = 0.05, 100  # pause between attempts to remove cgroups after a death, and their number
LEAVE_TIMEOUT_S = 5.0  # for all descendants of a zygote to die after the supervisor is gone


def main(settings: dict[str, Any]) -> NoReturn:
    """Run a zygote in its own interpreter, with ``settings`` from the supervisor's service."""
    control = socket.socket(fileno=launch.HANDED)
    control.set_inheritable(False)
    if settings.get("second"):
        _main_of_tvm(settings, control, fresh=True)
    reaper = processes.become_subreaper()
    where = settings["folder"], settings["read_only"]
    shared = mount_namespace.probe(*where) if settings["isolate"] else "--no-isolation"
    if shared and settings["read_only"]:
        messages.send_json(control, failed=f"--read-only: sessions get no mounts of their own here ({shared})")
        os._exit(0)
    if settings["no_network"] and (why := shared or network_namespace.probe()):
        messages.send_json(control, failed=f"--session-network none: sessions get no network of their own here ({why})")
        os._exit(0)
    # Only a subreaper adopts inits: qemu 7 does not support that.
    own_pids = bool(reaper and not shared and not mount_namespace.probe(*where, own_pids=True))
    settings = {**settings, "isolate": not shared, "own_pids": own_pids, "host_mounts": pid_namespace.mounts()}
    zygote = Zygote(control, settings)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _prepare(settings, control, zygote)
        if why := _why_no_users(settings):
            how = f"sessions cannot have users of their own here ({why}); --session-user none does without"
            messages.send_json(control, failed=f"--session-user: {how}")
            os._exit(0)
        messages.send_json(control, ready=True, shared=shared)
        zygote.run()
    zygote.leave()


def _why_no_users(settings: dict[str, Any]) -> str:
    """Return why sessions cannot run as other users than the server's; empty if they can, or need not."""
    if settings["user"] is None:
        return ""
    paths = [*session_user.files_of_code(), *settings["needed"]]

    def become() -> None:
        child.enter_namespaces({**settings, "own_pids": False})
        session_user.try_out(session_user.User(*settings["user"]), paths)

    return processes.try_in_copy(become)


def _prepare(settings: dict[str, Any], control: socket.socket, zygote: Zygote) -> None:
    """Import what children need. A signal reports the supervisor's end, even while an import hangs."""
    before = signal.signal(signal.SIGTERM, lambda *_: zygote.leave())
    processes.die_with_parent(settings["supervisor"], signal.SIGTERM)
    try:
        if settings["fork"]:
            preload.ahead(settings)
        launch.freeze()
        if settings["fork"] and settings["tvm_apart"] and not settings["imports"]:
            zygote.prepare_tvm()
        zygote.start_maker()
        if settings["fork"]:
            preload.everything(settings, control)
            preload.capable(settings)
            _bound(settings)
        processes.die_with_parent(settings["supervisor"], 0)
        signal.signal(signal.SIGTERM, before)
    except ImportError as error:
        messages.send_json(control, failed=str(error))
        os._exit(0)
    launch.freeze()


def _bound(settings: dict[str, Any]) -> None:
    if settings["confined"]:
        privileges.bound(privileges.kept(settings["read_only"]))


def _main_of_tvm(settings: dict[str, Any], control: socket.socket, *, fresh: bool) -> NoReturn:
    """Run the zygote for TVM's clients, a child of the first zygote, which cleans up if this one dies.

    The first order is there. ``fresh``: it is no copy of the first one.
    """
    processes.die_with_parent(settings["supervisor"])
    processes.become_subreaper()
    processes.set_name("rpcsys-tvm")
    first_child = json.loads(control.recv(messages.MAX_BYTES, socket.MSG_PEEK))["spawn"]
    zygote = Zygote(control, settings)
    zygote.start_maker()
    _bound(settings)
    try:
        preload.tvm_for_children(settings, control, first_child)
        zygote.hooks = not fresh or preload.has_hooks()
        launch.freeze()
        messages.send_json(control, ready=True)
        zygote.run()
    except ImportError as error:
        messages.send_json(control, failed=str(error), child=first_child)
    finally:
        os._exit(1)


class DeadChild(NamedTuple):
    """A dead child; see :class:`rpcsys.server.supervisor.events.ChildDead`."""

    child: int
    status: int
    starved: bool


class Zygote:
    """Makes and reaps the children; the subreaper of all their descendants.

    Where possible each child has a PID namespace with an init, and the kernel kills all processes in it at once.
    Elsewhere each adopted process is an orphan of a dead session, and is killed until a scan finds no other. A child
    counts as dead only when no descendant of it is left.
    """

    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self.control = control
        self.settings = settings
        self.hooks = True  # whether modules here do something after a fork
        self._known: dict[int, int] = {}  # PID of a child's own process or of its init -> child
        self._inits: dict[int, int] = {}  # child -> PID of its init
        self._over: dict[int, DeadChild] = {}  # children whose own process is dead and whose init still lives
        self._ended: list[DeadChild] = []  # dead children, whose descendants may still live
        self._sessions: set[int] = set()  # children with a session's limits
        self._maker: pid_namespace.InitMaker | None = None
        self._helpers: frozenset[int] = frozenset()  # processes that modules of --import have started
        self._orphans = processes.Orphans()
        self._adopted = False  # whether processes may have become this one's children
        self._reported_stuck: list[str] = []
        self._cleaned: dict[int, list[str]] = {}  # child -> names of its killed descendants
        self._removed: dict[int, list[str]] = {}  # child -> IPC objects that vanished with it
        #: What no child has: it leads to other sessions' directories, out of the limits, or to the supervisor.
        self._held = [held for held in (work_folders.hold(settings["folder"]),) if held >= 0]
        self._held += cgroups.hold(settings["cgroups"])
        self._clears = CLEAR_TRIES if settings["cgroups"] and not settings.get("second") else 0
        self._clear_tries = self._clears  # an earlier zygote may have left some
        self._deaths, self._wakeup = socket.socketpair()
        self._deaths.setblocking(False)
        self._wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self.control, select.POLLIN)
        self._poll.register(self._deaths, select.POLLIN)
        self._held += [own.fileno() for own in (self.control, self._deaths, self._wakeup)]
        self._tvm = TvmZygote(control, self._poll, self._become_tvm_zygote)
        if settings["isolate"]:
            mount_namespace.look_up(settings["folder"], tuple(settings["keep"]), tuple(settings["closed"]))

    def start_maker(self) -> None:
        """Start the maker of inits, where children have PID namespaces: a copy of this process while it is small."""
        if self.settings["own_pids"]:
            self._maker = pid_namespace.InitMaker(self._close_own)

    def prepare_tvm(self) -> None:
        """Have a second zygote wait for TVM's first client, while it still gets all capabilities.

        Without it, or when it has died, the next order has a copy of this process take its place.
        """
        with contextlib.suppress(OSError):
            self._tvm.prepare(__name__, {**self.settings, "supervisor": os.getpid(), "second": True})

    def run(self) -> None:
        """Serve the supervisor until it is gone."""
        self._helpers = frozenset(processes.children(os.getpid()))
        while True:
            timeout_s = processes.RESCAN_S if self._ended else CLEAR_S if self._clear_tries else None
            ready = [descriptor for descriptor, _ in self._poll.poll(timeout_s and timeout_s * 1000)]
            if self._deaths.fileno() in ready:
                self._deaths.recv(4096)
            if self._tvm.descriptor in ready and self._tvm.pass_on():
                self._clear_tries = self._clears  # it may have been a death
            self._collect()
            self._clear_cgroups()
            if self.control.fileno() in ready and not self._take_order():
                return

    def _take_order(self) -> bool:
        """Carry out one order of the supervisor; False when the supervisor is gone."""
        data, child_control = messages.receive(self.control)
        if not data:
            return False
        order = json.loads(data)
        if "spawn" in order and child_control is not None:
            self._spawn(order, data, child_control)
        elif order.get("kill") in self._tvm.children:
            self._tvm.kill(order["kill"], data)
        for pid, number in self._known.items():
            if number == order.get("kill") and pid != self._inits.get(number):
                self._kill(pid, number)
        return True

    def _kill(self, pid: int, number: int) -> None:
        """Kill a child, after noting what is in its namespaces, which vanish with it."""
        if self.settings["isolate"] and number in self._sessions:
            self._removed[number] = ipc_cleanup.seen(self.settings, f"/proc/{pid}/root")
        self._end_others(number, pid)
        processes.kill(pid)

    def _end_others(self, number: int, *pids: int) -> None:
        """Kill all in a child's PID namespace, after noting names: of descendants of ``pids``, and of orphans."""
        if number in self._inits and number not in self._cleaned:  # else they are killed, if not yet dead
            init = self._inits[number]
            self._cleaned[number] = list(processes.names(limits.members((*pids, init))[1:]))
            processes.kill(init)

    # Making children

    def _spawn(self, order: dict[str, Any], data: bytes, child_control: int) -> None:
        """Make a child; with ``--no-fork`` a fresh interpreter. The second zygote makes those for TVM's clients."""
        number, kind = order["spawn"], messages.ChildKind(order["kind"])
        of_tvm = kind is messages.ChildKind.TVM
        try:
            if of_tvm and self.settings["fork"] and not self.settings.get("second"):
                self._tvm.spawn(number, data, child_control)
                return
            if kind.limited:
                self._sessions.add(number)
            rehearse = kind.of_session and not order.get("at_once")
            pid = self._make(number, child_control, {"of_tvm": of_tvm, "rehearse": rehearse})
            self._known[pid] = number
            init = self._inits.get(number, 0)
            messages.send_json(self.control, born=number, pid=pid, init=init, zygote=os.getpid())
        except OSError as error:
            # Too many processes, or no memory: the supervisor tries again after a pause.
            sys.stderr.write(f"rpcsys-server: no session process: {error.strerror}\n")
            self._ended.append(DeadChild(number, 1, False))
        finally:
            os.close(child_control)

    def _make(self, number: int, child_control: int, own: dict[str, Any]) -> int:
        """Start a child's process, with an init of its own where possible; return its PID. Raises OSError.

        ``own``: its settings beside this process's.
        """
        folders = self.settings["cgroups"]
        if number not in self._sessions:
            folders, own["shared"] = {}, self.settings["deploy"]
        elif folders and not _in_cgroup(lambda: cgroups.make(folders, number, self.settings["memory"])):
            folders = {}

        def start(other: int = -1) -> int:
            if not self.settings["fork"]:
                settings = {**self.settings, **own, "parent": os.getpid()}
                pid = launch.start("rpcsys.server.sandbox.child", settings, child_control, "rpcsys-session")
                _in_cgroup(lambda: cgroups.enter(folders, number, pid))
                return pid
            pid = processes.fork()
            if not pid:
                if other >= 0:
                    os.close(other)
                if folders:
                    _in_cgroup(lambda: cgroups.enter(folders, number))
                self._become_child(child_control, own)
            return pid

        if self._maker is None:
            return start()
        init = self._maker.make_init()
        try:
            pid = self._maker.start_below(init, start)
        except OSError:
            self._adopted = True  # the init is nobody's, and so is what may be below it
            raise
        self._known[init], self._inits[number] = number, init
        return pid

    def _become_tvm_zygote(self, control: socket.socket) -> NoReturn:
        """In the second zygote, right after the fork: close this one's descriptors, then run."""
        try:
            settings = {**self.settings, "supervisor": self._leave_zygote(), "second": True}
            _main_of_tvm(settings, control, fresh=False)
        finally:
            os._exit(1)

    def _become_child(self, child_control: int, own: dict[str, Any]) -> NoReturn:
        """In the child, right after the fork: close the zygote's descriptors, then run."""
        try:
            self.settings.update(own, parent=self._leave_zygote())  # a copy of them would write to all their pages
            child.run(socket.socket(fileno=child_control), self.settings, child.enter_namespaces(self.settings))
        finally:
            os._exit(1)

    def _leave_zygote(self) -> int:
        """In a copy of this process that is to run Python code: have nothing of the zygote; return the zygote's PID."""
        if self.hooks:
            processes.finish_fork()
        signal.set_wakeup_fd(-1)
        processes.default_signal(signal.SIGCHLD)
        parent = os.getppid()
        if self._maker is None:
            self._close_own()
        else:
            self._maker.close_own()
        return parent

    def _close_own(self) -> None:
        """In a copy of this process, close its private descriptors. Some show the supervisor that the zygote ended."""
        self._tvm.close_own()
        while self._held:
            os.close(self._held.pop())

    # The end of children

    def _collect(self) -> None:
        """Reap the dead, kill orphans, and report each dead child that has no descendant left."""
        if self._orphans.burst(self._spared):
            self._report()
        stuck = [*self._orphans.stuck.values(), *self._tvm.stuck][: messages.MAX_NAMES]
        if stuck != self._reported_stuck:
            self._reported_stuck = stuck
            messages.send_json(self.control, stuck=stuck)

    def _spared(self, dead: list[processes.Dead]) -> AbstractSet[int] | None:
        """Note the dead; return the PIDs that are no orphans, None if there can be no orphan.

        There is none before a child has died. An init's end leaves none, but that of the second zygote does.
        """
        for one in dead:
            number = self._known.pop(one.pid, None)
            if number is not None:
                self._note_death(number, one)
        lost = self._tvm.died(dead)
        self._ended += [DeadChild(number, status, False) for number, status in lost.items()]
        self._adopted |= self._maker is None or bool(lost)
        if not self._ended or not self._adopted:
            return None
        makers = {self._tvm.pid} if self._maker is None else {self._tvm.pid, self._maker.pid}
        return self._known.keys() | self._helpers | makers

    def _note_death(self, number: int, one: processes.Dead) -> None:
        """Note a dead process. When a child's own process and its init are dead, the kernel has ended all of it."""
        if self._inits.get(number) == one.pid:
            del self._inits[number]
        else:
            self._over[number] = DeadChild(number, one.status, self._starved(number, one))
            self._end_others(number)
        if number in self._over and number not in self._inits:
            self._ended.append(self._over.pop(number))
            if self.settings["cgroups"]:
                self._clear_tries = self._clears
                if not self.settings["own_pids"]:  # else its init's end has killed all
                    cgroups.kill(self.settings["cgroups"], number)

    def _starved(self, number: int, one: processes.Dead) -> bool:
        """Whether the kernel reports it, or a child's peak, without what it had after the fork, came near its limit."""
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
        self._ended, self._adopted = [], False

    def leave(self) -> NoReturn:
        """After the supervisor's end: kill all descendants, remove the directories, and exit."""
        until = time.monotonic() + LEAVE_TIMEOUT_S
        while not self._orphans.burst(lambda _: frozenset()) and time.monotonic() < until:
            time.sleep(processes.RESCAN_S)
        governors.put_back(self.settings["folder"])
        for _ in work_folders.removal(self.settings["folder"]):
            pass
        if os.getppid() != self.settings["supervisor"]:  # else the supervisor uses them, or removes them itself
            cgroups.finish(self.settings["cgroups"])
        os._exit(0)

    def _clear_cgroups(self) -> None:
        if self._clear_tries and not self._ended:
            gone = cgroups.clear(self.settings["cgroups"], {*self._known.values(), *self._tvm.children})
            self._clear_tries = 0 if gone else self._clear_tries - 1


def _in_cgroup(act: Callable[[], None]) -> bool:
    """Whether ``act`` succeeds; an OSError is logged."""
    try:
        act()
        return True
    except OSError as error:
        sys.stderr.write(f"rpcsys-server: a session has no cgroup ({error.strerror}): polling holds its limits\n")
        sys.stderr.flush()
        return False
