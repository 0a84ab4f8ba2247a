"""A mount and an IPC namespace for each session, where the kernel allows them: what it leaves behind is gone with it.

Known weakness: without ``--read-only``, files outside of a session's own directory and of those in memory stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from typing import Iterable, Iterator, Sequence

from rpcsys.server.sandbox import pid_namespace, processes
from rpcsys.server.sandbox.processes import LIBC, check, fork

SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # directories that everyone may write to; a session has its own
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _SLAVE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 19
#: Options in /proc/self/mountinfo that are to be given again, with their flags of mount(2); the same by statvfs's bits.
_OPTIONS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
_BITS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
#: File systems with no disk behind them, or none of this machine's.
_PSEUDO = frozenset((
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "securityfs", "selinuxfs", "sysfs", "tmpfs",
    "tracefs",
))  # fmt: skip


def probe(folder: str, read_only: bool = False, own_pids: bool = False) -> str:
    """Why sessions cannot have namespaces of their own here; empty when they can.

    Tried out in a process that ends at once: there is no way back from half of it.
    """
    host = pid_namespace.mounts()
    return processes.try_in_copy(lambda: _try_out(host, folder, read_only, own_pids))


def _try_out(host: int, folder: str, read_only: bool, own_pids: bool) -> None:
    def enter() -> None:
        pid_namespace.leave(pid_namespace.MOUNTS)
        MountNamespace(host, folder, read_only=read_only, own_pids=own_pids)

    def enter_inside(_: int) -> int:
        pid = fork()
        if not pid:
            try:
                enter()
                os._exit(0)
            except OSError as error:
                os._exit(error.errno or errno.EIO)
        return pid

    if not own_pids:
        enter()
        return
    processes.become_subreaper()
    maker = pid_namespace.InitMaker(lambda: None)
    init = maker.make_init()
    status = os.waitpid(maker.start_below(init, enter_inside), 0)[1]
    for pid in (init, maker.pid):
        processes.kill(pid)
        os.waitpid(pid, 0)
    if status:
        raise OSError(os.WEXITSTATUS(status), os.strerror(os.WEXITSTATUS(status)))


class MountNamespace:
    """The mounts of a namespace that this process has entered; made ahead of a job, before a second thread.

    ``/tmp``, ``/var/tmp`` and ``/dev/shm`` are empty file systems in memory. Mounts that the host makes or takes away
    meanwhile are seen inside; nothing goes the other way.

    ``host``: the mount namespace that the process has left, in which nothing is mounted. ``folder`` holds the
    directories of all sessions, of which only that of :meth:`open` is seen. The paths in ``keep`` stay where they are.
    ``size``: bytes of each directory in memory, by default half of the machine's. ``shared``: a directory that all may
    write to. ``read_only``: no other disk can be written to. ``own_pids``: the process is in a PID namespace of its
    own, too. Raises OSError.
    """

    def __init__(
        self, host: int, folder: str, keep: Sequence[str] = (), size: int | None = None,
        shared: str | None = None, read_only: bool = False, own_pids: bool = False,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._read_only = read_only
        self._in_shared = _below_shared(os.path.realpath(folder))
        if pid_namespace.mounts() == host:
            raise OSError("these are still the host's own mounts")
        _mount(None, "/", _REC | _SLAVE)
        if own_pids:
            # In some containers /proc must stay the outer one: it names what no signal reaches.
            with contextlib.suppress(PermissionError):
                _mount("proc", "/proc", _NOSUID | _NODEV | _NOEXEC, "proc")
        _limit_kernel_memory(size)
        # By its parent: the folder itself may be made anew while this process waits.
        self._parent = _path_descriptor(os.path.dirname(folder))
        kept = [(path, _path_descriptor(path)) for path in sorted(set(hidden(keep))) if os.path.exists(path)]
        if read_only:
            _close_disks()
            _close_kernel()
        for place in sorted({os.path.realpath(place) for place in SHARED if os.path.isdir(place)}):
            limit = "50%" if size is None else str(size)
            _mount("tmpfs", place, _NOSUID | _NODEV, "tmpfs", f"mode=1777,size={limit}")
        for path, descriptor in kept:
            _make_mount_point(path, f"/proc/self/fd/{descriptor}")
            _mount(f"/proc/self/fd/{descriptor}", path, _BIND | _REC)
            os.close(descriptor)
        if read_only and shared and os.path.isdir(shared):
            _mount(shared, shared, _BIND)
            make_read_only(shared, 0)
        if self._in_shared:
            self._cover()

    def open(self, home: str) -> None:
        """Let the directory ``home`` in the folder be seen, and no other: two system calls. Raises OSError."""
        beside, name = os.path.split(home)
        descriptor = _path_descriptor(f"/proc/self/fd/{self._parent}/{os.path.basename(beside)}/{name}")
        os.close(self._parent)
        if not self._in_shared:
            self._cover()  # only now: what is mounted on the folder itself lies in the way from its parent
        os.makedirs(home, 0o700, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", home, _BIND)
        if self._read_only:
            make_read_only(home, 0)
        os.close(descriptor)

    def _cover(self) -> None:
        os.makedirs(self._folder, 0o700, exist_ok=True)
        _mount("tmpfs", self._folder, _NOSUID | _NODEV, "tmpfs", "mode=700,size=64k")


def hidden(paths: Iterable[str]) -> list[str]:
    """Those of ``paths`` that lie below a directory that a session has of its own."""
    return [path for path in map(os.path.realpath, filter(None, paths)) if _below_shared(path)]


def _below_shared(path: str) -> bool:
    return path.startswith(tuple(place + "/" for place in SHARED))


def _limit_kernel_memory(size: int | None) -> None:
    """Bounds of a namespace: System V shared memory, and user namespaces inside, with mounts of their own."""
    settings = {} if size is None else {"kernel/shmall": size // os.sysconf("SC_PAGE_SIZE")}
    if os.geteuid():  # for root the bound would be the whole machine's
        settings["user/max_user_namespaces"] = 0
    for name, value in settings.items():
        with contextlib.suppress(OSError):  # some kernels bound none, or let only root do it
            processes.write_file(f"/proc/sys/{name}", str(value))


def _path_descriptor(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _make_mount_point(path: str, like: str) -> None:
    """Something at ``path`` that ``like`` can be mounted on."""
    if os.path.exists(path):
        return
    if os.path.isdir(like):
        os.makedirs(path, 0o755)
    else:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _mount(source: str | None, target: str, flags: int, kind: str = "none", data: str = "") -> None:
    words = ((source or "none").encode(), target.encode(), kind.encode())
    check(LIBC.mount(*words, ctypes.c_ulong(flags), data.encode() or None))


def make_read_only(path: str, flag: int = _RDONLY) -> None:
    """Have nothing written through the mount at ``path``; with ``flag`` 0, have it written to. Raises OSError."""
    bits = os.statvfs(path).f_flag
    _mount(None, path, _REMOUNT | _BIND | flag | sum(kept for bit, kept in _BITS.items() if bits & bit))


def _close_disks() -> None:
    """Have nothing written to any disk any more, through any path that exists now. Raises OSError.

    What else is set on a mount is kept: in a user namespace the kernel insists on it. Pseudo file systems and those in
    memory stay as they are: through them a board is used, and nothing of them outlives it.
    """
    for path, flags in _disks():
        if os.path.lexists(path):  # else another mount hides it
            _mount(None, path, _REMOUNT | _BIND | _RDONLY | flags)


def _close_kernel() -> None:
    """Close the kernel's settings and the disks' devices, through which root writes past a mount. Raises OSError."""
    for path in ("/proc/sys", "/proc/sysrq-trigger"):
        if os.path.exists(path):
            _mount(path, path, _BIND | _REC)
            make_read_only(path)
    for entry in os.scandir("/dev"):
        if stat.S_ISBLK(entry.stat(follow_symlinks=False).st_mode):
            _mount("/dev/null", entry.path, _BIND)


def _disks() -> Iterator[tuple[str, int]]:
    """Mounts that can be written to and outlive a session: where, and with which flags (proc(5), mountinfo)."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split()
            options, kind = fields[5].split(","), fields[fields.index("-") + 1]
            if "rw" in options and kind not in _PSEUDO:
                escaped = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape")
                yield os.fsdecode(escaped.encode("latin-1")), sum(_OPTIONS.get(option, 0) for option in options)
