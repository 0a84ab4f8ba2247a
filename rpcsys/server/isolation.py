"""Namespaces of a session's own, where the kernel allows them: what it leaves behind is gone with it.

In a private mount namespace ``/dev/shm`` is an empty file system of the session's own, and ``/tmp`` and
``/var/tmp`` are its directory for temporary files; in a private IPC namespace no semaphore, queue or segment
of System V outlives it. Entering them takes half a millisecond, so a waiting child does it ahead; its
session's directory is put in place when its job comes, which takes five system calls.

Root enters them as it is, everyone else in a user namespace (where ``sudo`` does not work). Mounts that the
host makes or takes away meanwhile are seen inside; nothing goes the other way. Known weakness: files that a
session writes elsewhere, as far as the server's user may, stay.
"""

from __future__ import annotations

import ctypes
import os
from typing import Iterable, Optional, Sequence

SHARED = ("/tmp", "/var/tmp", "/dev/shm")
"""Directories that everyone may write to; a session has its own."""

_NEWNS, _NEWIPC, _NEWUSER = 0x00020000, 0x08000000, 0x10000000
_NOSUID, _NODEV, _BIND, _REC, _SLAVE = 2, 4, 4096, 16384, 1 << 19


def probe() -> str:
    """Why sessions cannot have namespaces of their own here; empty when they can.

    Tried out in a process that ends at once: there is no way back from half of it.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            enter()
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        why = answer.read()
    os.waitpid(pid, 0)
    return why


def enter(shared_memory: Optional[int] = None) -> None:
    """Leave the host's namespaces. ``shared_memory``: bytes that ``/dev/shm`` may take, by default half of all.

    To be called before the process has a second thread. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user = 0 if os.geteuid() == 0 else _NEWUSER
    identity = [("uid_map", os.geteuid()), ("gid_map", os.getegid())]
    _check(libc.unshare(_NEWNS | _NEWIPC | user))
    if user:
        _write("setgroups", "deny")
        for name, number in identity:
            _write(name, f"{number} {number} 1")
    _mount(libc, None, "/", _REC | _SLAVE)
    if os.path.isdir("/dev/shm"):
        size = "size=50%" if shared_memory is None else f"size={shared_memory}"
        _mount(libc, "tmpfs", "/dev/shm", _NOSUID | _NODEV, "tmpfs", "mode=1777," + size)


def furnish(home: str, temporary: str, keep: Sequence[str]) -> None:
    """Put ``temporary`` in the place of the directories everyone shares, in namespaces of our own.

    ``home`` and the paths in ``keep`` stay where they are, also if that is below one of these. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    places = sorted({os.path.realpath(place) for place in SHARED[:2] if os.path.isdir(place)})
    kept = [(path, _handle(path)) for path in sorted({home, *hidden(keep)}) if hidden([path])]
    own = _handle(temporary)
    for place in places:
        _mount(libc, f"/proc/self/fd/{own}", place, _BIND)
    for path, handle in kept:
        _make_place(path, f"/proc/self/fd/{handle}")
        _mount(libc, f"/proc/self/fd/{handle}", path, _BIND)
    for handle in (own, *(handle for _, handle in kept)):
        os.close(handle)


def hidden(paths: Iterable[str]) -> list[str]:
    """Those of ``paths`` that exist and lie below a directory that a session has of its own."""
    real = [os.path.realpath(path) for path in paths if path]
    return [path for path in real if path.startswith(tuple(place + "/" for place in SHARED)) and _there(path)]


def _there(path: str) -> bool:
    return os.path.exists(path)


def _handle(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _make_place(path: str, like: str) -> None:
    """Something at ``path`` that ``like`` can be mounted on."""
    if os.path.exists(path):
        return
    if os.path.isdir(like):
        os.makedirs(path, 0o755)
    else:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _mount(
    libc: ctypes.CDLL, source: Optional[str], target: str, flags: int, kind: str = "none", data: str = ""
) -> None:
    _check(
        libc.mount(
            (source or "none").encode(),
            target.encode(),
            kind.encode(),
            ctypes.c_ulong(flags),
            data.encode() or None,
        )
    )


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _write(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
        file.write(text)
