"""A PID namespace for each session, whose first process is an init: its end is the end of all that is in it.

::

    zygote ── opener: leaves the host's namespaces, makes the init, exits
           └─ init (1 in there), an orphan that the zygote adopts ── the session's process (2), and all it starts

The kernel kills whatever is in a PID namespace when its init ends, also what forks faster than anyone could list, and the
init is dead only when all of it is. Processes of other sessions, and the server's, cannot be named from inside.

A session's process is not itself the init: the kernel keeps signals without a handler from an init, such as its own
SIGSEGV and SIGABRT, and native code counts on those. An init costs 1.5 MB: what it
shares with nobody, because the zygote and the session's process have both written to their copies since. It ends with its session's
process, or when the zygote is gone, and has nothing that its session could want: no privilege, no
socket but the one it reports with.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from typing import Any, Callable, NoReturn, Optional

from rpcsys.server import messages, privileges, processes
from rpcsys.server.libc import LIBC, check, fork

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000

_NO_SIGNALS = (ctypes.c_uint64 * 16)()
"""An empty ``sigset_t``: of all signals, none is blocked."""

_BY_SIGNAL = 128
"""An init cannot end by a signal: it exits with this and the signal's number, as shells do."""


class _Watched(ctypes.Structure):
    """One ``struct pollfd``: a socket whose end, which is the zygote's, is all that is asked for."""

    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


def mounts() -> int:
    """Which mount namespace this process is in."""
    return os.stat("/proc/self/ns/mnt").st_ino


def leave(own_pids: bool) -> None:
    """Leave the host's mount, IPC and, for processes to come, PID namespaces; who is not root by a user namespace. Raises OSError."""
    user = 0 if os.geteuid() == 0 else _NEWUSER
    identity = [("uid_map", os.geteuid()), ("gid_map", os.getegid())]
    check(LIBC.unshare(_NEWNS | _NEWIPC | (_NEWPID if own_pids else 0) | user))
    if user:
        _write("setgroups", "deny")
        for name, number in identity:
            _write(name, f"{number} {number} 1")


def open_for(make: Callable[[], int], report: Optional[socket.socket] = None, **about: Any) -> int:
    """Have ``make`` start a session's process below an init in new namespaces; the number of the init, a child of the caller.

    The caller is a subreaper with one thread. When the session's process ends, the init sends ``report`` a message of ``about`` and
    the names of what else had to be killed, then exits with that process's status. Raises OSError.
    """
    reading, writing = os.pipe()
    opener = fork()
    if not opener:
        _open(make, writing, report, about)
    os.close(writing)
    said = os.read(reading, 100)  # one write, or nothing at all
    os.close(reading)
    os.waitpid(opener, 0)
    number = int(said or b"0")
    if number <= 0:
        raise OSError(-number, os.strerror(-number) if number else "the namespaces' opener died")
    return number


def _open(
    make: Callable[[], int], writing: int, report: Optional[socket.socket], about: dict[str, Any]
) -> NoReturn:
    try:
        leave(own_pids=True)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # but while an init waits
        watched = _Watched(report.fileno() if report is not None else -1)
        init = fork()
        if not init:
            os.close(writing)
            _watch(make, watched, report, about)
        os.write(writing, b"%d" % init)
    except OSError as error:
        os.write(writing, b"-%d" % (error.errno or 5))
    finally:
        os._exit(0)


def _watch(
    make: Callable[[], int], watched: _Watched, report: Optional[socket.socket], about: dict[str, Any]
) -> NoReturn:
    """The life of an init. What it does until it waits is little: each page that it writes to is another copy for every slot."""
    try:
        main = make()
        privileges.drop_all()
        privileges.hide()
        while LIBC.ppoll(ctypes.byref(watched), 1, None, _NO_SIGNALS) < 0:  # a child died, not the zygote
            for dead in processes.reap():
                if dead.pid == main:
                    _tell(report, about)
                    os._exit(_BY_SIGNAL - dead.status if dead.status < 0 else dead.status)
    except OSError as error:
        sys.stderr.write(f"rpcsys-server: no session process: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(1)


def _tell(report: Optional[socket.socket], about: dict[str, Any]) -> None:
    """What is left, by name. Where ``/proc`` is the host's, this process has another number there."""
    if report is None:
        return
    left = processes.names(processes.descendants(int(os.readlink("/proc/self"))))
    try:
        report.setblocking(False)
        messages.tell(report, **about, cleaned=left[: messages.MAX_NAMES])
    except OSError:
        pass  # the zygote is gone, or has not listened for hundreds of sessions


def status(code: int) -> int:
    """The status of a session's process, from its init's."""
    return _BY_SIGNAL - code if code > _BY_SIGNAL else code


def _write(name: str, text: str) -> None:
    descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
