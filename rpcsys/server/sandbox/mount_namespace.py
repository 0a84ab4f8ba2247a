"""Namespaces of a session's own, where the kernel allows them: what it leaves behind is gone with it.

In a private mount namespace ``/tmp``, ``/var/tmp`` and ``/dev/shm`` are empty file systems of the session's own, in
memory (its own directory, which is on the disk, is its TMPDIR); in a private IPC namespace no semaphore,
queue or segment of System V outlives it; ``/proc`` shows its own processes alone. Furnishing them takes half a
millisecond, so a waiting child does it ahead; its session's directory appears when its job comes, with two system calls.
How they are entered: :mod:`rpcsys.server.sandbox.pid_namespace`.

Root enters them as it is, everyone else in a user namespace (where ``sudo`` does not work). Mounts that the
host makes or takes away meanwhile are seen inside; nothing goes the other way. With ``read_only`` a session can write
to no disk but its own directory and the cache. Known weakness: without, files that it writes elsewhere stay.
"""

from __future__ import annotations

import errno
import os
from typing import Iterable, Optional, Sequence

from rpcsys.server.sandbox import pid_namespace, processes
from rpcsys.server.sandbox.libc import fork
from rpcsys.server.sandbox.mounts import (
    BIND,
    NODEV,
    NOEXEC,
    NOSUID,
    REC,
    SLAVE,
    close_disks,
    close_kernel,
    mount,
    open_again,
)

SHARED = ("/tmp", "/var/tmp", "/dev/shm")
"""Directories that everyone may write to; a session has its own."""

_GRANTED = b"granted"


def probe(folder: str, read_only: bool = False, own_pids: bool = False) -> str:
    """Why sessions cannot have namespaces of their own here; empty when they can. Parameters as for :class:`Rooms`.

    Tried out in a process that ends at once: there is no way back from half of it.
    """
    left = pid_namespace.mounts()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _try_out(left, folder, read_only, own_pids)
            os.write(writing, _GRANTED)
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    said = os.read(reading, 1000)
    os.close(reading)
    os.waitpid(pid, 0)
    return "" if said == _GRANTED else said.decode() or "for a reason unknown"


def _try_out(left: int, folder: str, read_only: bool, own_pids: bool) -> None:
    def furnish() -> None:
        pid_namespace.leave(pid_namespace.MOUNTS)
        Rooms(left, folder, read_only=read_only, own_pids=own_pids)

    def furnish_inside(_: int) -> int:
        pid = fork()
        if not pid:
            try:
                furnish()
                os._exit(0)
            except OSError as error:
                os._exit(error.errno or errno.EIO)
        return pid

    if not own_pids:
        furnish()
        return
    processes.become_subreaper()
    inits = pid_namespace.Inits(lambda: None)
    init = inits.open()
    status = os.waitpid(inits.start_below(init, furnish_inside), 0)[1]
    for pid in (init, inits.maker):
        processes.kill(pid)
        os.waitpid(pid, 0)
    if status:
        raise OSError(os.WEXITSTATUS(status), os.strerror(os.WEXITSTATUS(status)))


class Rooms:
    """The namespaces that this process has entered, furnished; to be made before it has a second thread.

    ``left``: the mount namespace that it has left for that (:func:`rpcsys.server.sandbox.pid_namespace.mounts`), in which nothing is mounted.
    ``folder`` holds the directories of all sessions, none of which is seen after :meth:`open` but one. The paths in
    ``keep`` stay where they are. ``size``: bytes that each of the directories in memory may take, by default
    half of the machine's. ``shared``: a directory that all may write to. ``read_only``: nothing else on a disk can be written to.
    ``own_pids``: it is in a PID namespace of its own, too. Raises OSError.
    """

    def __init__(
        self,
        left: int,
        folder: str,
        keep: Sequence[str] = (),
        size: Optional[int] = None,
        shared: Optional[str] = None,
        read_only: bool = False,
        own_pids: bool = False,
    ) -> None:
        self._folder = folder
        self._read_only = read_only
        self._in_shared = _below_shared(os.path.realpath(folder))
        if pid_namespace.mounts() == left:
            raise OSError("these are still the host's own mounts")
        mount(None, "/", REC | SLAVE)
        if own_pids:
            _own_proc()
        _bound_more(size)
        # By its parent: the folder itself may be made anew while this process waits.
        self._parent = _handle(os.path.dirname(folder))
        kept = [(path, _handle(path)) for path in sorted(set(hidden(keep))) if os.path.exists(path)]
        if read_only:
            close_disks()
            close_kernel()
        for place in sorted({os.path.realpath(place) for place in SHARED if os.path.isdir(place)}):
            limit = "50%" if size is None else str(size)
            mount("tmpfs", place, NOSUID | NODEV, "tmpfs", f"mode=1777,size={limit}")
        for path, handle in kept:
            _make_place(path, f"/proc/self/fd/{handle}")
            mount(f"/proc/self/fd/{handle}", path, BIND | REC)
            os.close(handle)
        if read_only and shared and os.path.isdir(shared):
            mount(shared, shared, BIND)
            open_again(shared)
        if self._in_shared:
            self._cover()

    def open(self, home: str) -> None:
        """Let the directory ``home`` in the folder be seen, and no other. Raises OSError."""
        beside, name = os.path.split(home)
        handle = _handle(f"/proc/self/fd/{self._parent}/{os.path.basename(beside)}/{name}")
        os.close(self._parent)
        if not self._in_shared:
            self._cover()  # only now: what is mounted on the folder itself lies in the way from its parent
        os.makedirs(home, 0o700, exist_ok=True)
        mount(f"/proc/self/fd/{handle}", home, BIND)
        if self._read_only:
            open_again(home)
        os.close(handle)

    def _cover(self) -> None:
        """Hide the directories of all sessions."""
        os.makedirs(self._folder, 0o700, exist_ok=True)
        mount("tmpfs", self._folder, NOSUID | NODEV, "tmpfs", "mode=700,size=64k")


def _own_proc() -> None:
    """Have ``/proc`` show the processes of this PID namespace. In some containers it must stay the outer one: it names what no signal reaches."""
    try:
        mount("proc", "/proc", NOSUID | NODEV | NOEXEC, "proc")
    except PermissionError:
        pass


def _bound_more(size: Optional[int]) -> None:
    """What the kernel bounds for a namespace: System V shared memory, and user namespaces inside, with file systems in memory of their own."""
    if size is not None:
        _set("kernel/shmall", size // os.sysconf("SC_PAGE_SIZE"))
    if os.geteuid():  # for root the bound would be the whole machine's
        _set("user/max_user_namespaces", 0)


def _set(name: str, value: int) -> None:
    try:
        with open(f"/proc/sys/{name}", "w") as file:
            file.write(str(value))
    except OSError:
        pass  # a kernel that bounds none, or lets only root do it


def hidden(paths: Iterable[str]) -> list[str]:
    """Those of ``paths`` that lie below a directory that a session has of its own."""
    return [path for path in map(os.path.realpath, filter(None, paths)) if _below_shared(path)]


def _below_shared(path: str) -> bool:
    return path.startswith(tuple(place + "/" for place in SHARED))


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
