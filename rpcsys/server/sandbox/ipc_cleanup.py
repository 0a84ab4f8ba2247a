"""Finds and removes shared memory, semaphores and message queues that sessions leave.

In a session's own namespaces they vanish with it and are only reported (`seen`); else `IpcCleanup` removes them, or
`remove_all_of` where the session had a user of its own.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Container, Iterator, NamedTuple, Sequence

from rpcsys.server.sandbox import mount_namespace, work_folders
from rpcsys.server.sandbox.limits import listed
from rpcsys.server.sandbox.messages import MAX_NAMES
from rpcsys.server.sandbox.processes import LIBC

SHM = "/dev/shm"
#: Where all users may write, besides the folders of which a session may have its own.
WRITABLE = ("/run/lock", "/dev/mqueue")
_SYSTEM_V = {"shm": "shared memory", "sem": "semaphores", "msg": "queue"}


class IpcObject(NamedTuple):
    """One file in /dev/shm, or one System V object."""

    kind: str  # ``file``, ``shm``, ``sem`` or ``msg``
    number: int  # inode or identifier
    name: str = ""
    maker: int = 0  # the process that made it, or used it last; 0 where the kernel does not show it
    users: int = 0  # how many processes have it attached

    def describe(self) -> str:
        """The object's name in a report."""
        return f"{SHM}/{self.name}" if self.kind == "file" else f"System V {_SYSTEM_V[self.kind]} {self.number}"

    def abandoned(self) -> bool:
        """Whether its maker has ended and no process uses it."""
        return bool(self.maker) and not self.users and not os.path.exists(f"/proc/{self.maker}")

    def remove(self) -> bool:
        """Remove the object; False if that is refused or it is gone."""
        if self.kind == "file":
            return not LIBC.unlink(os.fsencode(os.path.join(SHM, self.name)))
        if self.kind == "sem":
            return not LIBC.semctl(self.number, 0, 0)
        control = LIBC.shmctl if self.kind == "shm" else LIBC.msgctl
        return not control(self.number, 0, None)


class IpcCleanup:
    """Removes IPC objects that sessions have made, on boards without namespaces. ``users``: of sessions.

    An object that a running session may own stays until the board is idle.
    """

    def __init__(self, users: Sequence[int] = ()) -> None:
        self._users = users or (os.geteuid(),)
        self._before: set[tuple[str, int]] = set()

    def note_idle(self) -> None:
        """Note the objects that exist while no session runs: sessions have not made them."""
        self._before = {(one.kind, one.number) for one in found(self._users)}

    def remove(self, alone: bool) -> tuple[str, ...]:
        """Remove what an ended session left; return the objects' names. ``alone``: no other session runs."""
        new = [one for one in found(self._users) if (one.kind, one.number) not in self._before]
        removed = [one.describe() for one in new if (alone or one.abandoned()) and one.remove()]
        return tuple(removed[:MAX_NAMES])


def remove_all_of(user: int, shared: bool) -> tuple[str, ...]:
    """Remove the IPC objects of ``user``, who has no process, and what it has where all may write; return the names.

    ``shared``: its sessions had no namespaces of their own. Known weakness: folders that a board opens elsewhere.
    """
    objects = [one.describe() for one in _system_v((user,)) if one.remove()] if shared else []
    files = list(files_of(user, shared))
    for path in files:
        if os.path.isdir(path) and not os.path.islink(path):
            for _ in work_folders.removal(path):
                pass
        else:
            LIBC.unlink(os.fsencode(path))
    return tuple([*objects, *files][:MAX_NAMES])


def files_of(user: int, shared: bool) -> Iterator[str]:
    """The paths of what ``user`` has in folders where all may write; ``shared`` as for :func:`remove_all_of`."""
    for place in (*mount_namespace.SHARED, *WRITABLE) if shared else WRITABLE:
        with contextlib.suppress(OSError), os.scandir(place) as entries:  # no such folder, or an entry is gone
            for entry in entries:
                if entry.stat(follow_symlinks=False).st_uid == user:
                    yield entry.path


def seen(settings: dict[str, Any], root: str = "") -> list[str]:
    """Names of the objects that a session has left in its own namespaces.

    ``settings``: those of its child. ``root``: from outside, the session's /proc/PID/root.
    """
    ours = {_top(path) for path in (settings["folder"], *settings["keep"])}
    paths = (f"{place}/{name}" for place in mount_namespace.SHARED for name in listed(root + place))
    names = [path for path in paths if path not in ours]
    if not root:
        names += [one.describe() for one in _system_v(None)]
    return names[:MAX_NAMES]


def _top(path: str) -> str:
    """The entry of a shared directory that contains ``path``; ``path`` itself if none does."""
    shared = next((place for place in mount_namespace.SHARED if path.startswith(place + "/")), None)
    return path if shared is None else "/".join(path.split("/")[: shared.count("/") + 2])


def found(users: Container[int]) -> list[IpcObject]:
    """All IPC objects of ``users`` in this process's namespaces."""
    files = []
    with contextlib.suppress(OSError), os.scandir(SHM) as entries:  # no such folder, or an entry is gone meanwhile
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if status.st_uid in users:
                files.append(IpcObject("file", status.st_ino, entry.name))
    return [*files, *_system_v(users)]


def _system_v(users: Container[int] | None) -> list[IpcObject]:
    objects = []
    with contextlib.suppress(OSError):  # a kernel without System V IPC
        for kind in _SYSTEM_V:
            with open(f"/proc/sysvipc/{kind}", "rb", buffering=0) as file:
                headings, *rows = file.readall().decode("ascii").splitlines() or [""]
            for row in (dict(zip(headings.split(), line.split())) for line in rows):
                if users is None or int(row["cuid"]) in users:
                    maker = int(row.get("cpid") or row.get("lspid") or 0)
                    number = int(row["msqid" if kind == "msg" else kind + "id"])
                    objects.append(IpcObject(kind, number, "", maker, int(row.get("nattch", 0))))
    return objects
