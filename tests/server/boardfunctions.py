"""Functions of a test board, for ``--import tests.server.boardfunctions``."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time

from rpcsys.server import register
from rpcsys.server.sandbox import processes


@register("board.pid")
def pid() -> int:
    return processes.number()


@register("board.files")
def files() -> str:
    return os.getcwd()


@register("board.temporary")
def temporary() -> str:
    import tempfile

    return tempfile.mkdtemp()


@register("board.daemon")
def daemon() -> int:
    """Start a daemon process, with a new session and SIGTERM ignored; its PID."""
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
    """Hold the interpreter's lock in one endless call of C code."""
    sum(itertools.repeat(0))


@register("board.descriptors")
def descriptors() -> list[str]:
    """The targets of this process's open descriptors."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(found)


@register("board.babble")
def babble(which: int) -> int:
    """Send invalid messages to all sockets of this process; how many there are."""
    nonsense = [
        b'{"ready": 1}',
        b'{"limit_s": "long"}',
        b'{"outcome": "closed", "removed": 7}',
        b"[" * 60000,
        b"{}",
        b'{"load": [1e999, 0, 0]}',
        b'{"failed": "x\\n2026-01-01 00:00:00,000 rpcsys-server INFO forged"}',
    ]
    count = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(number)) as sock:
                if sock.family == socket.AF_UNIX:
                    count += 1
                    sock.send(nonsense[which % len(nonsense)])
        except OSError:
            continue
    return count
