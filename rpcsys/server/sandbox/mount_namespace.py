"""Mount and IPC namespaces for each session, where the kernel allows them: what it leaves in them vanishes with it.

Known weakness: without ``--read-only``, files that a session writes to a disk outside its own directory stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import stat
from typing import Iterable, Iterator, NamedTuple, Sequence

from rpcsys.server.sandbox import pid_namespace, processes
from rpcsys.server.sandbox.processes import LIBC, check, fork

SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # directories that every user may write to; a session has its own
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _SLAVE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 19
#: Options in /proc/self/mountinfo that a remount repeats, with their flags of mount(2); then statvfs's bits with these.
_OPTIONS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
_BITS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
#: Pseudo file systems, and those in memory.
_PSEUDO = frozenset((
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "securityfs", "selinuxfs", "sysfs", "tmpfs",
    "tracefs",
))  # fmt: skip


def probe(folder: str, read_only: bool = False, own_pids: bool = False) -> str:
    """Return why sessions cannot have namespaces of their own here; empty if they can.

    Tested in a process that ends at once, because entering a namespace cannot be undone.
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
    """The mounts of the namespace that this process has entered; made before its job and before a second thread.

    ``/tmp``, ``/var/tmp`` and ``/dev/shm`` become empty file systems in memory. Later mounts and unmounts of the host
    appear inside; mounts made inside do not appear on the host.

    ``host``: the mount namespace that the process has left. ``folder``: the directories of all sessions; only that of
    :meth:`open` is visible. ``keep``: paths that stay visible. ``size``: bytes of each file system in memory, half of
    the machine's memory by default. ``read_only``: no disk can be written to, except the directories of :meth:`open`
    and ``shared``. ``own_pids``: the process is in a PID namespace of its own, too. ``secret``: paths that are empty
    inside. ``closed``: folders that sessions' users may not enter (:func:`closed_above`): they become file systems in
    memory, too, with those of ``keep``. Raises OSError.
    """

    def __init__(
        self, host: int, folder: str, keep: Sequence[str] = (), size: int | None = None,
        shared: str | None = None, read_only: bool = False, own_pids: bool = False, secret: Iterable[str] = (),
        closed: Sequence[str] = (),
    ) -> None:  # fmt: skip
        places = look_up(folder, tuple(keep), tuple(closed))
        self._folder = folder
        self._read_only = read_only
        self._in_shared = places.in_shared
        if pid_namespace.mounts() == host:
            raise OSError("these are still the host's own mounts")
        _mount(None, "/", _REC | _SLAVE)
        if own_pids:
            # Some containers forbid this: /proc then also lists processes that no signal reaches.
            with contextlib.suppress(PermissionError):
                _mount("proc", "/proc", _NOSUID | _NODEV | _NOEXEC, "proc")
        _limit_kernel_memory(size)
        # Opened by its parent: the folder itself may be made anew while this process waits.
        self._parent = _path_descriptor(os.path.dirname(folder))
        kept = [(path, _path_descriptor(path)) for path in places.kept if os.path.exists(path)]
        if read_only:
            _close_disks()
            _close_kernel()
        for place in places.shared:
            limit = "50%" if size is None else str(size)
            _mount("tmpfs", place, _NOSUID | _NODEV, "tmpfs", f"mode=1777,size={limit}")
        for place in closed:
            _mount("tmpfs", place, _NOSUID | _NODEV, "tmpfs", "mode=755,size=64k")
        for path, descriptor in kept:
            _make_mount_point(path, f"/proc/self/fd/{descriptor}")
            _mount(f"/proc/self/fd/{descriptor}", path, _BIND | _REC)
            os.close(descriptor)
        if read_only and shared and os.path.isdir(shared):
            _mount(shared, shared, _BIND)
            make_read_only(shared, 0)
        for path in secret:
            _hide(path)
        if self._in_shared:
            self._cover()

    def open(self, home: str) -> None:
        """Make the directory ``home`` of the folder visible, and no other. Raises OSError."""
        beside, name = os.path.split(home)
        descriptor = _path_descriptor(f"/proc/self/fd/{self._parent}/{os.path.basename(beside)}/{name}")
        os.close(self._parent)
        if not self._in_shared:
            self._cover()  # only now: a mount on the folder hides ``home`` from its parent
        os.makedirs(home, 0o700, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", home, _BIND)
        if self._read_only:
            make_read_only(home, 0)
        os.close(descriptor)

    def _cover(self) -> None:
        os.makedirs(self._folder, 0o700, exist_ok=True)
        _mount("tmpfs", self._folder, _NOSUID | _NODEV, "tmpfs", "mode=711,size=64k")


class ResolvedPaths(NamedTuple):
    """Whether the sessions' folder is ``in_shared``, the paths ``kept`` visible, and the ``shared`` directories."""

    in_shared: bool
    kept: tuple[str, ...]
    shared: tuple[str, ...]


@functools.lru_cache(maxsize=1)
def look_up(folder: str, keep: tuple[str, ...], closed: tuple[str, ...]) -> ResolvedPaths:
    """Resolve the paths of a `MountNamespace`: once, by a zygote, for all its children."""
    shared = sorted({os.path.realpath(place) for place in SHARED if os.path.isdir(place)})
    return ResolvedPaths(bool(hidden([folder], closed)), tuple(hidden(keep, closed)), tuple(shared))


def hidden(paths: Iterable[str], closed: Sequence[str] = ()) -> list[str]:
    """Those of ``paths``, as given and without links, that are below a directory of `SHARED` or ``closed``."""
    above = tuple(place + "/" for place in (*SHARED, *closed))
    both = {form for path in paths if path for form in (os.path.abspath(path), os.path.realpath(path))}
    return sorted(path for path in both if path.startswith(above) and path not in closed)


def closed_above(paths: Iterable[str]) -> list[str]:
    """The uppermost folders above ``paths`` that their owners alone may enter, such as /root; not below `SHARED`."""
    found = set()
    for path in {os.path.realpath(path) for path in paths if path} - set(hidden(paths)):
        names = path.split("/")
        for above in ("/".join(names[:count]) for count in range(2, len(names))):
            if is_closed(above):
                found.add(above)
                break
    return sorted(found)


def is_closed(path: str) -> bool:
    """Whether ``path`` is a folder that not all users may enter."""
    return os.path.isdir(path) and not os.stat(path).st_mode & stat.S_IXOTH


def _limit_kernel_memory(size: int | None) -> None:
    """Limit System V shared memory, and forbid nested user namespaces, which can mount file systems."""
    settings = {} if size is None else {"kernel/shmall": size // os.sysconf("SC_PAGE_SIZE")}
    if os.geteuid():  # root's limit would hold for the whole machine
        settings["user/max_user_namespaces"] = 0
    for name, value in settings.items():
        with contextlib.suppress(OSError):  # some kernels have no limit, or allow it to root only
            processes.write_file(f"/proc/sys/{name}", str(value))


def _path_descriptor(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _make_mount_point(path: str, like: str) -> None:
    """Make a file or directory at ``path`` on which ``like`` can be mounted."""
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
    """Make the mount at ``path`` read-only or, with ``flag`` 0, writable. Raises OSError."""
    bits = os.statvfs(path).f_flag
    _mount(None, path, _REMOUNT | _BIND | flag | sum(kept for bit, kept in _BITS.items() if bits & bit))


def _hide(path: str) -> None:
    """Make a folder or a file empty, if it is there. Raises OSError."""
    if os.path.isdir(path):
        _mount("tmpfs", path, _RDONLY | _NOSUID | _NODEV | _NOEXEC, "tmpfs", "mode=555,size=4k")
    elif os.path.exists(path):
        _mount("/dev/null", path, _BIND)


def _close_disks() -> None:
    """Remount all disks read-only. Raises OSError.

    Other mount options are kept, as the kernel requires in a user namespace. Pseudo file systems and those in memory
    stay writable: sessions use devices through them, and nothing written to them survives a restart of the board.
    """
    for path, flags in _disks():
        if os.path.lexists(path):  # else another mount hides it
            _mount(None, path, _REMOUNT | _BIND | _RDONLY | flags)


def _close_kernel() -> None:
    """Make kernel settings read-only and hide block devices, by which root bypasses a mount. Raises OSError."""
    for path in ("/proc/sys", "/proc/sysrq-trigger"):
        if os.path.exists(path):
            _mount(path, path, _BIND | _REC)
            make_read_only(path)
    for entry in os.scandir("/dev"):
        if stat.S_ISBLK(entry.stat(follow_symlinks=False).st_mode):
            _mount("/dev/null", entry.path, _BIND)


def _disks() -> Iterator[tuple[str, int]]:
    """Yield the mount point and flags of each writable mount of a disk (proc(5), mountinfo)."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split()
            options, kind = fields[5].split(","), fields[fields.index("-") + 1]
            if "rw" in options and kind not in _PSEUDO:
                escaped = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape")
                yield os.fsdecode(escaped.encode("latin-1")), sum(_OPTIONS.get(option, 0) for option in options)
