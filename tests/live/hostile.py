"""What users' code may do to a session process: functions for ``--import tests.live.hostile``.

``hostile.c`` in :mod:`tests.live.artefacts` has the same ones for TVM sessions.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time

from rpcsys.server import register


@register("hostile.pid")
def pid() -> int:
    return os.getpid()


@register("hostile.workdir")
def workdir() -> str:
    return os.getcwd()


@register("hostile.crash")
def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


@register("hostile.leave")
def leave() -> None:
    """As a library leaves, not as Python does."""
    ctypes.CDLL(None).exit(3)


@register("hostile.nap")
def nap() -> None:
    while True:
        time.sleep(1)


@register("hostile.spin")
def spin() -> None:
    while True:
        pass


@register("hostile.seize")
def seize() -> None:
    """Inside one C function that holds the interpreter's lock: no other thread here has a turn again."""
    sum(itertools.repeat(0))


@register("hostile.spawn")
def spawn() -> int:
    """A child that ignores what it can; its pid."""
    return os.fork() or _linger()


@register("hostile.daemonise")
def daemonise() -> int:
    """A process in a session of its own, whose parent is gone; its pid."""
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


@register("hostile.bytes")
def many_bytes(count: int) -> bytes:
    """A large answer, every page of it in memory."""
    return b"\xa5" * count
