"""Functions of a test board, for ``--import tests.server.boardfunctions``."""

from __future__ import annotations

import itertools
import os
import time

from rpcsys.server import register


@register("board.pid")
def pid() -> int:
    return os.getpid()


@register("board.files")
def files() -> str:
    return os.getcwd()


@register("board.temporary")
def temporary() -> str:
    import tempfile

    return tempfile.mkdtemp()


@register("board.daemon")
def daemon() -> int:
    """A process that has left its parent, its session and its signals behind; its number."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, b"%d" % os.getpid())
            while True:
                time.sleep(1)
        os._exit(0)
    return int(os.read(reader, 20))


@register("board.sleep")
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@register("board.seize")
def seize() -> None:
    """Hold the interpreter's lock in one call of C code, for ever."""
    sum(itertools.repeat(0))


@register("board.descriptors")
def descriptors() -> list[str]:
    """What this process has open."""
    return sorted(os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")[:-1])
