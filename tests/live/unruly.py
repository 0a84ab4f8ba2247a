"""More of what users' code may do: functions for ``--import tests.live.unruly``, beside :mod:`tests.live.hostile`."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from multiprocessing import shared_memory

from rpcsys.server import register

PIECE = bytes(1 << 20)


@register("hostile.fill")
def fill(most_mb: int) -> int:
    """Fill the disk below the session's directory, half with one file and half with small ones; how many."""
    count = 0
    try:
        with open("large", "wb", buffering=0) as file:
            file.writelines(PIECE for _ in range(most_mb // 2))
        os.makedirs("a/b/c")
        for count in range(most_mb * 128):
            with open(f"a/b/c/{count}", "wb") as file:
                file.write(PIECE[:4096])
    except OSError:
        pass  # it is full
    return count


@register("hostile.listen")
def listen() -> list[int]:
    """Ports that this process and a daemon of it listen on."""
    ours, daemons = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        ours.close()
        while True:
            time.sleep(1)
    ports = [sock.getsockname()[1] for sock in (ours, daemons)]
    daemons.close()
    KEPT.append(ours)
    return ports


KEPT: list[object] = []


@register("hostile.share")
def share() -> int:
    """Leave shared memory, semaphores and queues of every kind; how many."""
    libc = ctypes.CDLL(None)
    libc.shmget(0, 1 << 20, 0o600)
    libc.semget(0, 2, 0o600)
    libc.msgget(0, 0o600)
    with open("/dev/shm/left-by-a-session", "w") as file:
        file.write("here")
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    KEPT.append(block)
    return 5


@register("hostile.stray")
def stray() -> str:
    """Files in the directories that everyone shares; the name of one."""
    name = f"left-by-{os.getpid()}"
    for place in ("/tmp", "/var/tmp"):
        with open(os.path.join(place, name), "w") as file:
            file.write("here")
    return os.path.join("/tmp", name)


@register("hostile.swarm")
def swarm(count: int) -> int:
    """Children that ignore SIGTERM and daemonise children of their own."""
    for _ in range(count):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            os.fork()
            os.fork()
            while True:
                time.sleep(1)
    return count


@register("hostile.devour")
def devour() -> None:
    """Allocate without end, in C and in many processes."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    os.fork()
    while True:
        piece = libc.malloc(1 << 20)
        if piece:
            ctypes.memset(piece, 1, 1 << 20)


@register("hostile.hoard")
def hoard() -> None:
    """Allocate without end, in Python."""
    while True:
        KEPT.append(bytearray(1 << 20))


@register("hostile.seen")
def seen() -> dict[str, object]:
    """What this session can see of others."""
    return {
        "shm": sorted(os.listdir("/dev/shm")),
        "system_v": [len(open(f"/proc/sysvipc/{kind}").readlines()) - 1 for kind in ("shm", "sem", "msg")],
        "tmp": [name for name in os.listdir("/tmp") if name.startswith("left-by-")],
        "homes": os.listdir(os.path.dirname(os.path.dirname(os.getcwd()))),
        "cpus": sorted(os.sched_getaffinity(0)),
    }
