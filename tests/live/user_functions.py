"""Functions of sessions that say which user they have, and leave what belongs to it; the standard library alone."""

from __future__ import annotations

import ctypes
import glob
import os
import subprocess
import sys

from rpcsys.server.session.registry import register

WRITABLE = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")
LIBC = ctypes.CDLL(None)


@register("user.about")
def about() -> dict[str, object]:
    """The user, and what belongs to it."""
    printed = subprocess.run(["sh", "-c", "echo printed >/dev/stderr"], stderr=2, check=False).returncode
    death = ctypes.c_int()
    LIBC.prctl(2, ctypes.byref(death), 0, 0, 0)
    places = (".", "..", os.environ["HOME"], os.environ["TMPDIR"])
    return {
        "ids": [*os.getresuid(), *os.getresgid()],
        "groups": os.getgroups(),
        "owners": [os.stat(place).st_uid for place in places],
        "files": os.listdir("."),
        "descriptors": bool(os.listdir("/proc/self/fd")),
        "printed": printed,
        "dies_with_parent": death.value,
    }


@register("user.leave")
def leave() -> int:
    """Leave closed folders, files where all may write, IPC objects, and a process in a session of its own; its PID."""
    os.makedirs("closed/inner")
    os.chmod("closed", 0)
    os.chmod("..", 0o777)
    for place in WRITABLE:
        if os.path.isdir(place):
            os.makedirs(f"{place}/left-{os.getuid()}/inner")
            open(f"{place}/left-{os.getuid()}/inner/file", "w").close()
            os.symlink("/etc", f"{place}/left-{os.getuid()}-link")
    LIBC.shmget(0, 4096, 0o600)
    LIBC.semget(0, 1, 0o600)
    LIBC.msgget(0, 0o600)
    code = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    return int(process.stdout.readline())


@register("user.left")
def left() -> list[str]:
    """What a former session of this user has left that this one finds."""
    own = {os.getpid(), os.getppid()}
    processes = [path for path in glob.glob("/proc/[0-9]*") if int(path[6:]) not in own and _mine(path)]
    found = [path for place in WRITABLE for path in glob.glob(f"{place}/*") if _mine(path)]
    for kind in ("shm", "sem", "msg"):
        with open(f"/proc/sysvipc/{kind}") as lines:
            found += [f"{kind} {line.split()[1]}" for line in list(lines)[1:] if str(os.getuid()) in line.split()]
    return [*processes, *found, *os.listdir(".")]


def _mine(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.getuid()
    except OSError:
        return False
