"""A PID namespace for each session. Its first process is an init: when that ends, the kernel ends all others in it.

::

    zygote ─┬─ maker: forks inits beside itself
            ├─ init (PID 1 inside)
            └─ the session's process (PID 2) and its descendants; the init adopts orphans

An init is dead only when all processes in its namespace are, and it ends when the zygote does. Why a session's process
is not itself the init: docs/decisions/0005-clean-boards.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
from typing import Callable, NoReturn

from rpcsys.link.tcp import NO_SIGNAL
from rpcsys.server.sandbox import bare_process, messages, privileges, processes
from rpcsys.server.sandbox.processes import LIBC, check, fork

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
#: Namespaces that a process can leave: of mounts and IPC objects; of networks; and of PIDs, for its later children.
MOUNTS, NETWORK, PIDS = _NEWNS | _NEWIPC, _NEWNET, _NEWPID
LOOK_S = 0.05  # while the maker does not answer, between two looks whether it lives


def mounts() -> int:
    """The number of this process's mount namespace."""
    return os.stat("/proc/self/ns/mnt").st_ino


def leave(which: int) -> None:
    """Leave the host's namespaces ``which``; without root, by a user namespace. Raises OSError."""
    if LIBC.unshare(which) == 0:
        return
    if os.geteuid() == 0:
        check(-1)
    check(LIBC.unshare(which | _NEWUSER))
    _map_user("self")


def _map_user(pid: int | str) -> None:
    """Give a process in a new user namespace the user and group that it has outside. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    settings = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in settings.items():
        processes.write_file(f"/proc/{pid}/{name}", text)


class InitMaker:
    """Makes inits and starts processes below them. All become children of this process, a subreaper with one thread.

    The maker is a process of its own, ``pid``: a copy of the zygote, of which its inits have next to nothing
    (`bare_process`). ``close_others`` closes, in a copy of this process, its other private descriptors.
    """

    def __init__(self, close_others: Callable[[], None]) -> None:
        self._close_others = close_others
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self._alive, self._ours = os.pipe()  # its end closes with this process, which ends the inits
        self._start()

    def _start(self) -> None:
        self._requests, theirs = messages.pair()
        self._answers = select.poll()
        self._answers.register(self._requests, select.POLLIN)
        parent = os.getpid()
        self.pid = fork()
        if not self.pid:
            self.close_own()
            _make_inits(theirs, self._alive, parent)
        theirs.close()

    def close_own(self) -> None:
        """Close, in a copy of this process, its private descriptors."""
        self._close_others()
        os.close(self._own)
        os.close(self._ours)
        self._requests.close()

    def make_init(self) -> int:
        """Make a PID namespace; return the PID of its init. Raises OSError."""
        answer = self._ask()
        if not answer:  # the maker was killed
            self._requests.close()
            self._start()
            answer = self._ask()
        return _number(answer, "the maker of inits")

    def _ask(self) -> bytes:
        """Ask the maker for an init; its answer, empty when it is dead: inits hold its end of the socket open."""
        try:
            self._requests.send(b"?", NO_SIGNAL)
            while not self._answers.poll(LOOK_S * 1000):
                if processes.parent(self.pid) != os.getpid() or not processes.alive(self.pid):
                    return b""
            return self._requests.recv(100)
        except ConnectionError:
            return b""

    def start_below(self, init: int, start: Callable[[int], int]) -> int:
        """Call ``start`` to start a process in the PID namespace of ``init``; return its PID. Raises OSError.

        ``start`` takes a descriptor that the new process closes (-1 for none), and returns the PID.
        """
        if os.geteuid():
            return _elsewhere(lambda: _join(init, "user", "pid"), start)  # without root there is no way back
        _join(init, "pid")
        try:
            return start(-1)
        finally:
            check(LIBC.setns(self._own, _NEWPID))


def _join(init: int, *kinds: str) -> None:
    for kind in kinds:
        with open(f"/proc/{init}/ns/{kind}", "rb", buffering=0) as namespace:
            check(LIBC.setns(namespace.fileno(), 0))


def _make_inits(requests: socket.socket, alive: int, parent: int) -> NoReturn:
    """Run a maker: make an init for each request, until the sender of requests is gone."""
    try:
        processes.die_with_parent(parent)
        processes.set_name("rpcsys-inits")
        signal.set_wakeup_fd(-1)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):  # the kernel reaps what inits adopt
            signal.signal(ignored, signal.SIG_IGN)
        privileges.drop(privileges.OF_INITS)
        clone = bare_process.prepare(alive)
        while requests.recv(1):
            try:
                number = _make_init(clone)
            except OSError as error:
                number = -(error.errno or errno.EIO)
            requests.send(b"%d" % number)
    finally:
        os._exit(0)


def _make_init(clone: Callable[[int], int]) -> int:
    """Make an init as a child of the maker's parent; return its PID. Raises OSError."""
    beside = bare_process.CLONE_PARENT | signal.SIGCHLD
    if not os.geteuid():
        return clone(beside | PIDS)
    init = clone(beside | PIDS | _NEWUSER)
    try:
        _map_user(init)
    except OSError:
        processes.kill(init)
        raise
    return init


def _elsewhere(enter: Callable[[], None], start: Callable[[int], int]) -> int:
    """Fork a copy that runs ``enter``, which cannot be undone, then ``start``; return the new PID. Raises OSError."""
    reading, writing = os.pipe()
    copy = fork()
    if not copy:
        try:
            os.close(reading)
            enter()
            os.write(writing, b"%d" % start(writing))
        except OSError as error:
            os.write(writing, b"-%d" % (error.errno or errno.EIO))
        finally:
            os._exit(0)
    os.close(writing)
    answer = os.read(reading, 100)  # one write, or nothing at all
    os.close(reading)
    with contextlib.suppress(ChildProcessError):  # the kernel has reaped it
        os.waitpid(copy, 0)
    return _number(answer, "a process on the way to namespaces")


def _number(answer: bytes, who: str) -> int:
    """The PID in ``who``'s answer. Raises OSError: the one that ``who`` reports, or that it died."""
    number = int(answer or b"0")
    if number <= 0:
        raise OSError(-number, os.strerror(-number) if number else f"{who} died")
    return number
