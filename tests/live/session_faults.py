"""Faults of users' code in a session process: functions for ``--import tests.live.session_faults``.

``session_faults.c`` has the same functions for TVM sessions.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time

from rpcsys.server import register


@register("fault.pid")
def pid() -> int:
    return os.getpid()


@register("fault.workdir")
def workdir() -> str:
    return os.getcwd()


@register("fault.crash")
def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


@register("fault.leave")
def leave() -> None:
    """Call the C library's exit(), as native code may."""
    ctypes.CDLL(None).exit(3)


@register("fault.nap")
def nap() -> None:
    while True:
        time.sleep(1)


@register("fault.spin")
def spin() -> None:
    while True:
        pass


@register("fault.hold_gil")
def hold_gil() -> None:
    """Run one C function that holds the GIL without end: no other thread of the process runs again."""
    sum(itertools.repeat(0))


@register("fault.spawn")
def spawn() -> int:
    """Fork a child that ignores SIGTERM and SIGHUP; its pid."""
    return os.fork() or _linger()


@register("fault.daemonise")
def daemonise() -> int:
    """Fork a daemon: its own process group and session, its parent ended; its pid."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            _linger()
        os.write(writing, str(grandchild).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(reading, 32))


def _linger() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while True:
        time.sleep(1)


@register("fault.bytes")
def many_bytes(count: int) -> bytes:
    """A large result, every page of it in memory."""
    return b"\xa5" * count
