"""Drops capabilities of a session for good: no program that it runs gets them back.

With them it could undo its limits: mount, read hidden files, write to a disk by a device node (capabilities(7)).
"""

from __future__ import annotations

import ctypes
import functools
from typing import AbstractSet

from rpcsys.server.sandbox.processes import LIBC, check, prctl

_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID = 0, 1, 3, 4, 5, 6, 7
_NET_BIND_SERVICE, _NET_RAW, _IPC_LOCK, _SYS_RAWIO, _SYS_ADMIN, _MKNOD, _PERFMON = 10, 13, 14, 17, 21, 27, 38
#: What root's session keeps: files of any owner, other users, low ports, ping, locked memory, performance counters.
KEPT = frozenset(
    {_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID}
    | {_NET_BIND_SERVICE, _NET_RAW, _IPC_LOCK, _PERFMON}
)
RAW = frozenset([_SYS_RAWIO, _MKNOD])  # also kept where disks are not closed: registers by /dev/mem, and device nodes
#: What the inits of PID namespaces keep: a process without it cannot trace them or take their descriptors.
OF_INITS = frozenset([_SYS_ADMIN])
_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITIES = 64
ALL = frozenset(range(_CAPABILITIES))
_HEADER = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process


def kept(read_only: bool) -> frozenset[int]:
    """The capabilities that root's sessions keep."""
    return KEPT if read_only else KEPT | RAW


def bound(kept: AbstractSet[int]) -> None:
    """Limit all programs that this thread and its descendants will run to the capabilities ``kept``. Raises OSError.

    This process keeps its own: :func:`drop` takes those away, and is ten times as quick.
    """
    _gain_none()
    _masks(frozenset(kept))  # for all children
    for number in range(_CAPABILITIES):
        if number not in kept and prctl(_PR_CAPBSET_READ, number) == 1:
            prctl(_PR_CAPBSET_DROP, number)  # EPERM without root: such programs get none anyway


def renounce() -> None:
    """Drop all capabilities, for this thread, its descendants and the programs that they run. Raises OSError."""
    _gain_none()
    drop(frozenset())


def _gain_none() -> None:
    check(prctl(_PR_SET_NO_NEW_PRIVS, 1))
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)  # EINVAL before Linux 4.3, which has none


def drop(kept: AbstractSet[int]) -> None:
    """Drop all capabilities but ``kept``, for this thread and its descendants. Raises OSError."""
    sets = (ctypes.c_uint32 * 6)()
    check(LIBC.capget(_HEADER, sets))
    for half, mask in enumerate(_masks(frozenset(kept))):
        sets[3 * half] &= mask  # effective
        sets[3 * half + 1] &= mask  # permitted
        sets[3 * half + 2] = 0  # inheritable
    check(LIBC.capset(_HEADER, sets))


@functools.lru_cache(maxsize=None)
def _masks(kept: frozenset[int]) -> tuple[int, int]:
    """The lower and the upper half of a set of capabilities, as capset(2) takes them."""
    whole = sum(1 << number for number in kept)
    return whole & 0xFFFFFFFF, whole >> 32
