"""Shared memory, semaphores and queues that sessions leave behind.

Where sessions have namespaces of their own these vanish with them, and are only looked at to be reported.
Elsewhere they are found by comparison: what was not there before, belongs to this server's user, and was made by no
process that lives. Which session made it can then not always be told; what may be another's that still runs
is left until the board is idle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from rpcsys.server.sandbox import mount_namespace
from rpcsys.server.sandbox.libc import LIBC

SHM = "/dev/shm"
MAX_NAMES = 32
"""Things named in one report."""

_NAMES = {"shm": "shared memory", "sem": "semaphores", "msg": "queue"}


@dataclass(frozen=True)
class Thing:
    """``kind``: ``file`` (in /dev/shm), ``shm``, ``sem`` or ``msg`` (System V); ``number``: inode or identifier.

    ``maker``: the process that made it, or used it last; 0 where the kernel does not tell. ``users``: how
    many have it attached.
    """

    kind: str
    number: int
    name: str
    maker: int = 0
    users: int = 0

    def __str__(self) -> str:
        return f"{SHM}/{self.name}" if self.kind == "file" else f"System V {_NAMES[self.kind]} {self.number}"


class Leftovers:
    """What was there before the sessions. For boards without namespaces."""

    def __init__(self) -> None:
        self._before: set[tuple[str, int]] = set()

    def idle(self) -> None:
        """No session runs: what is there now is nobody's business here."""
        self._before = {(thing.kind, thing.number) for thing in found(os.geteuid())}

    def remove(self, alone: bool) -> tuple[str, ...]:
        """Remove what a session that has ended has left; what that was. ``alone``: no other session runs."""
        removed = []
        for thing in found(os.geteuid()):
            known = (thing.kind, thing.number) in self._before
            if not known and (alone or _orphaned(thing)) and _remove(thing):
                removed.append(str(thing))
        return tuple(removed[:MAX_NAMES])


def seen(settings: dict[str, Any], root: str = "") -> list[str]:
    """What a session in namespaces of its own has made in them and not removed, by name.

    ``settings``: its child's. ``root``: looked at from outside, as /proc/PID/root of the session.
    """
    ours = {_top(path) for path in (settings["folder"], *settings["keep"])}
    names = [f"{place}/{name}" for place in mount_namespace.SHARED for name in _listed(root + place)]
    names = [name for name in names if name not in ours]
    if not root and any(_rows(kind) for kind in _NAMES):
        names += map(str, _system_v(None))
    return names[:MAX_NAMES]


def found(user: int) -> list[Thing]:
    """All that ``user`` has in the namespaces of this process."""
    return [*_files(SHM, user), *_system_v(user)]


def _top(path: str) -> str:
    """The entry of a shared directory that ``path`` is below."""
    for place in mount_namespace.SHARED:
        if path.startswith(place + "/"):
            return place + "/" + path[len(place) + 1 :].partition("/")[0]
    return path


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _files(folder: str, user: int) -> list[Thing]:
    things = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == user:
                    things.append(Thing("file", status.st_ino, entry.name))
    except OSError:
        pass  # no such place, or what was in it is gone meanwhile
    return things


def _system_v(user: int | None) -> list[Thing]:
    things = []
    for kind in _NAMES:
        names, *rows = _rows(kind) or [[]]
        for row in (dict(zip(names, row)) for row in rows):
            if user is None or int(row["cuid"]) == user:
                maker = int(row.get("cpid") or row.get("lspid") or 0)
                number = int(row["msqid" if kind == "msg" else kind + "id"])
                things.append(Thing(kind, number, "", maker, int(row.get("nattch", 0))))
    return things


def _rows(kind: str) -> list[list[str]]:
    """The kernel's table of a kind, headings first; empty when there is nothing in it."""
    try:
        descriptor = os.open(f"/proc/sysvipc/{kind}", os.O_RDONLY)
    except OSError:
        return []  # a kernel without System V IPC
    try:
        data = b""
        while True:
            piece = os.read(descriptor, 65536)
            if not piece:
                break
            data += piece
    finally:
        os.close(descriptor)
    lines = data.decode("ascii").splitlines()
    return [line.split() for line in lines] if len(lines) > 1 else []


def _orphaned(thing: Thing) -> bool:
    return bool(thing.maker) and not thing.users and not os.path.exists(f"/proc/{thing.maker}")


def _remove(thing: Thing) -> bool:
    if thing.kind == "file":
        try:
            os.unlink(os.path.join(SHM, thing.name))
        except OSError:
            return False
        return True
    if thing.kind == "sem":
        return not LIBC.semctl(thing.number, 0, 0)
    control = LIBC.shmctl if thing.kind == "shm" else LIBC.msgctl
    return not control(thing.number, 0, None)
