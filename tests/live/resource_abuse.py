"""Abuse of a board's resources by users' code: functions for ``--import tests.live.resource_abuse``."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing import shared_memory

from rpcsys.server import register

PIECE = bytes(1 << 20)


@register("fault.fill")
def fill(most_mb: int) -> int:
    """Fill the disk below the session's directory, half with one file, half with small ones; the number of those."""
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


@register("fault.listen")
def listen() -> list[int]:
    """Listen in this process and in a daemon of it; the two ports."""
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


@register("fault.share")
def share() -> int:
    """Leave shared memory, semaphores and message queues of every kind; their number."""
    libc = ctypes.CDLL(None)
    libc.shmget(0, 1 << 20, 0o600)
    libc.semget(0, 2, 0o600)
    libc.msgget(0, 0o600)
    with open("/dev/shm/left-by-a-session", "w") as file:
        file.write("here")
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    KEPT.append(block)
    return 5


@register("fault.write_tmp")
def write_tmp() -> str:
    """Write files into /tmp and /var/tmp; the path of one."""
    name = f"left-by-{os.getpid()}"
    for place in ("/tmp", "/var/tmp"):
        with open(os.path.join(place, name), "w") as file:
            file.write("here")
    return os.path.join("/tmp", name)


@register("fault.spawn_many")
def spawn_many(count: int) -> int:
    """Fork children that ignore SIGTERM and fork in their own process groups."""
    for _ in range(count):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            os.fork()
            os.fork()
            while True:
                time.sleep(1)
    return count


@register("fault.allocate")
def allocate() -> None:
    """Allocate memory without end, in C and in two processes."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    os.fork()
    while True:
        piece = libc.malloc(1 << 20)
        if piece:
            ctypes.memset(piece, 1, 1 << 20)


@register("fault.allocate_in_python")
def allocate_in_python() -> None:
    """Allocate memory without end, in Python."""
    while True:
        KEPT.append(bytearray(1 << 20))


@register("fault.leave_cpus")
def leave_cpus() -> list[int]:
    """Allow all CPUs, in native code, for this process, a thread and two children, one a daemon; the CPUs."""
    c = ctypes.CDLL(None, use_errno=True)
    everywhere = (ctypes.c_ulong * 16)(*[2**64 - 1] * 16)

    def leave() -> None:
        c.sched_setaffinity(0, ctypes.sizeof(everywhere), everywhere)

    def linger() -> None:
        leave()
        while True:
            time.sleep(1)

    leave()
    threading.Thread(target=linger, daemon=True).start()
    for daemon in (False, True):
        if os.fork() == 0:
            if daemon and os.fork():
                os._exit(0)
            linger()
    return sorted(os.sched_getaffinity(0))


@register("fault.change_cpus")
def change_cpus(seconds: float, *wanted: int) -> list[int]:
    """Set other CPUs in a loop; the CPUs that it ran on."""
    c = ctypes.CDLL(None)
    masks = [(ctypes.c_ulong * 16)(1 << cpu) for cpu in wanted]
    seen, until = set(), time.monotonic() + seconds
    while time.monotonic() < until:
        for mask in masks:
            c.sched_setaffinity(0, ctypes.sizeof(mask), mask)
            seen.add(c.sched_getcpu())
    return sorted(seen)


@register("fault.map_shared")
def map_shared(size_mb: int) -> int:
    """Allocate shared memory in native code and free it at once."""
    with mmap.mmap(-1, size_mb << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) as taken:
        place = (ctypes.c_char * len(taken)).from_buffer(taken)
        ctypes.memset(place, 1, len(taken))
        del place
    return size_mb


@register("fault.leave_cgroup")
def leave_cgroup(folders: list[str], limit: str) -> list[str]:
    """Try to raise the kernel's limits and to leave the cgroup; the files that could be written."""
    written = []
    for folder in folders:
        for name, text in (("cgroup.procs", "0"), (limit, "-1")):
            for place in (folder, os.path.dirname(folder)):
                with contextlib.suppress(OSError), open(f"{place}/{name}", "w") as file:
                    file.write(text)
                    file.flush()
                    written.append(file.name)
    return written


@register("fault.fill_unmapped")
def fill_unmapped(how: str, most_mb: int) -> None:
    """Fill memory that no process maps, in the way ``how``; then wait."""
    c = ctypes.CDLL(None, use_errno=True)
    c.shmat.restype = ctypes.c_void_p

    def memfd(name: str = "stowed") -> None:
        KEPT.append(made := os.memfd_create(name))
        for _ in range(most_mb):
            os.write(made, PIECE)

    def thread() -> None:
        c.unshare(0x400)  # CLONE_FILES: the thread has its own descriptors
        memfd()
        time.sleep(600)

    def files(*places: str, keep: bool = True) -> None:
        for place in places:
            with open(place + "/stowed", "wb", buffering=0) as file:
                if not keep:
                    os.unlink(file.name)
                    KEPT.append(os.dup(file.fileno()))
                file.writelines(PIECE for _ in range(most_mb // len(places)))

    def system_v() -> None:
        size = most_mb // 4 << 20
        at = c.shmat(c.shmget(0, size, 0o600), None, 0)
        ctypes.memset(at, 1, size)
        for _ in range(3):
            KEPT.append(made := os.memfd_create("stowed"))
            os.write(made, bytes(size))

    def sockets() -> None:
        for _ in range(most_mb):
            one, other = socket.socketpair()
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.send(PIECE[:65536])
            KEPT.extend((one, other))

    ways: dict[str, Callable[[], object]] = {
        "memfd": memfd,
        "child": lambda: os.fork() or memfd(),
        "thread": lambda: threading.Thread(target=thread, daemon=True).start(),
        "tmpfs": lambda: files("/tmp", "/var/tmp", "/dev/shm"),
        "deleted": lambda: files("/tmp", "/var/tmp", "/dev/shm", keep=False),
        "system v": system_v,
        "sockets": sockets,
    }
    ways[how]()
    time.sleep(600)


def listed(folder: str) -> list[str]:
    """What is in a folder; nothing in one that is closed to this user."""
    try:
        return os.listdir(folder)
    except PermissionError:
        return []


@register("fault.seen")
def seen() -> dict[str, object]:
    """What this session can see of other sessions."""
    return {
        "shm": sorted(os.listdir("/dev/shm")),
        "system_v": [len(open(f"/proc/sysvipc/{kind}").readlines()) - 1 for kind in ("shm", "sem", "msg")],
        "tmp": [name for name in os.listdir("/tmp") if name.startswith("left-by-")],
        "homes": listed(os.path.dirname(os.path.dirname(os.getcwd()))),
        "cpus": sorted(os.sched_getaffinity(0)),
    }


@register("fault.fork_and_exit")
def fork_and_exit(count: int) -> int:
    """Start processes that fork and exit without end, each in its own process session."""
    c = ctypes.PyDLL(None)
    for _ in range(count):
        if c.fork() == 0:
            while True:
                c.setsid()
                if c.fork():
                    c._exit(0)
    return count


@register("fault.kill_all")
def kill_all() -> list[int]:
    """SIGKILL to all processes that this one may kill, and to each pid in /proc; those pids."""
    named = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    for pid in (*named, -1):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return named


@register("fault.escape")
def escape(folder: str) -> dict[str, str]:  # noqa: C901 - a list of ways, two lines each
    """Try each way to write into ``folder`` of a read-only disk; the error of each, "" if it succeeded."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, new_user, remount, bind = 0x00020000, 0x10000000, 32, 4096

    def write() -> None:
        with open(os.path.join(folder, "escaped"), "w") as file:
            file.write("here")

    def open_again() -> None:
        for place in ("/", folder):
            libc.mount(b"none", place.encode(), b"none", ctypes.c_ulong(remount | bind), None)
        write()

    def bind_over() -> None:
        libc.mount(b"/", b"/tmp", b"none", ctypes.c_ulong(bind), None)
        libc.mount(b"none", b"/tmp", b"none", ctypes.c_ulong(remount | bind), None)
        with open("/tmp" + os.path.join(folder, "escaped"), "w") as file:
            file.write("here")

    def nested() -> None:
        libc.unshare(new_user | new_mounts)
        open_again()

    def nested_mounts() -> None:
        libc.unshare(new_mounts)
        open_again()

    def by_others() -> None:
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with open(f"/proc/{name}/root{folder}/escaped", "w") as file:
                    file.write("here")
        raise OSError("no process has another root")

    def device() -> None:
        number = os.stat(folder).st_dev
        os.mknod("/tmp/disk", 0o600 | 0o60000, number)
        os.close(os.open("/tmp/disk", os.O_RDWR))

    def named_device() -> None:
        number, found = os.stat(folder).st_dev, False
        for entry in os.scandir("/dev"):
            if entry.stat(follow_symlinks=False).st_rdev == number:
                os.close(os.open(entry.path, os.O_RDWR))
                found = True
        if not found:
            raise OSError("it is not in /dev")

    def core_pattern() -> None:
        with open("/proc/sys/kernel/core_pattern", "r+") as file:
            file.write(file.read())

    ways = [write, open_again, bind_over, nested, nested_mounts, by_others, device, named_device, core_pattern]
    return {way.__name__: _tried(way) for way in ways}


def _tried(way: Callable[[], None]) -> str:
    """Call ``way`` in a child process; its error, "" if it succeeds."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            way()
        except Exception as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as file:
        return file.read()
