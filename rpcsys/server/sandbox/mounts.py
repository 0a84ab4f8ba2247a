"""Mounts of this process's own mount namespace: made, and closed to writing or opened again. Linux only.

Closing is done mount by mount, with what every kernel has (a bind mount mounted again with other flags). What else is
set on a mount is kept: in a user namespace the kernel insists on it. Pseudo file systems and those in
memory (``/proc``, ``/sys``, ``/dev``, ``/run``) are left as they are: through them a board is used, and nothing of
them outlives it.
"""

from __future__ import annotations

import ctypes
import os
import stat
from typing import Iterator, Optional, Tuple

from rpcsys.server.sandbox.libc import LIBC, check

NOSUID, NODEV, NOEXEC, BIND, REC, SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
_RDONLY, _REMOUNT = 1, 32
#: Options in /proc/self/mountinfo, and bits of statvfs, that have to be given again: by their flags of mount(2).
_OPTIONS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
_BITS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
#: No disk behind them, or none of this machine's.
_PSEUDO = frozenset(
    [
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "ramfs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tmpfs",
        "tracefs",
    ]
)


def mount(source: Optional[str], target: str, flags: int, kind: str = "none", data: str = "") -> None:
    """The system call. Raises OSError."""
    check(
        LIBC.mount(
            (source or "none").encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode() or None
        )
    )


def close_disks() -> None:
    """Have nothing written to any disk any more, through any path that exists now. Raises OSError."""
    for path, flags in _disks():
        if os.path.lexists(path):  # else another mount hides it
            mount(None, path, _REMOUNT | BIND | _RDONLY | flags)


def close_kernel() -> None:
    """Have the kernel's settings and the disks' devices, through which root writes past a mount, not written to. Raises OSError."""
    for path in ("/proc/sys", "/proc/sysrq-trigger"):
        if os.path.exists(path):
            mount(path, path, BIND | REC)
            close(path)
    for entry in os.scandir("/dev"):
        if stat.S_ISBLK(entry.stat(follow_symlinks=False).st_mode):
            mount("/dev/null", entry.path, BIND)


def close(path: str) -> None:
    """Have nothing written through the mount at ``path``. Raises OSError."""
    mount(None, path, _REMOUNT | BIND | _RDONLY | _flags_of(path))


def open_again(path: str) -> None:
    """Have the mount at ``path``, which this process has made, written to. Raises OSError."""
    mount(None, path, _REMOUNT | BIND | _flags_of(path))


def _flags_of(path: str) -> int:
    bits = os.statvfs(path).f_flag
    return sum(flag for bit, flag in _BITS.items() if bits & bit)


def _disks() -> Iterator[Tuple[str, int]]:
    """Mounts that can be written to and outlive a session: where, and with which flags (proc(5), mountinfo)."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split()
            options, kind = fields[5].split(","), fields[fields.index("-") + 1]
            if "rw" in options and kind not in _PSEUDO:
                path = os.fsdecode(
                    fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape").encode("latin-1")
                )
                yield path, sum(_OPTIONS.get(option, 0) for option in options)
