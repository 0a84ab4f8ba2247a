"""Shared memory, semaphores and queues that sessions leave behind.

Where sessions have namespaces of their own these vanish with them, and are only looked at to be reported.
Elsewhere they are found by comparison: what was not there before, belongs to this server's user, and was made by no
process that lives. Which session made it can then not always be told; what may be another's that still runs
is left until the board is idle.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

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


def found(user: int | None = None, root: str = "") -> list[Thing]:
    """All that this process can see, or that ``user`` owns. ``root``: as the process with that /proc/PID/root sees it.

    (System V's is always what this process sees.)
    """
    things = _files(root + SHM, user)
    if root:
        return things
    for kind in _NAMES:
        for row in _table(kind):
            if user is None or int(row["cuid"]) == user:
                maker = row.get("cpid") or row.get("lspid") or "0"
                things.append(
                    Thing(
                        kind,
                        int(row[kind.replace("msg", "msq") + "id"]),
                        "",
                        int(maker),
                        int(row.get("nattch", 0)),
                    )
                )
    return things


def _files(folder: str, user: int | None) -> list[Thing]:
    things = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if user is None or status.st_uid == user:
                    things.append(Thing("file", status.st_ino, entry.name))
    except OSError:
        pass  # no such place, or what was in it is gone meanwhile
    return things


def _table(kind: str) -> list[dict[str, str]]:
    try:
        with open(f"/proc/sysvipc/{kind}", encoding="ascii") as file:
            names, *rows = [line.split() for line in file]
    except (OSError, ValueError):
        return []  # a kernel without System V IPC
    return [dict(zip(names, row)) for row in rows]


def _orphaned(thing: Thing) -> bool:
    return bool(thing.maker) and not thing.users and not os.path.exists(f"/proc/{thing.maker}")


def _remove(thing: Thing) -> bool:
    if thing.kind == "file":
        try:
            os.unlink(os.path.join(SHM, thing.name))
        except OSError:
            return False
        return True
    libc = ctypes.CDLL(None)
    if thing.kind == "sem":
        return not libc.semctl(thing.number, 0, 0)
    control = libc.shmctl if thing.kind == "shm" else libc.msgctl
    return not control(thing.number, 0, None)
