"""Memory for received arrays: reused, and 64-byte aligned, since a vectorised kernel can fault on less.

Fresh pages cost more than the transfer (throughput of 64 MB, a raw socket with a reused buffer being 1: bytearray 0.49,
plain mapping 0.45, this about 1.0). Large blocks are private mappings that are kept, the largest in huge pages.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import weakref
from typing import Any, List, Optional, Sequence

from rpcsys.errors import LimitExceeded

ALIGNMENT = 64
#: Blocks from this size on are reused: a smaller one takes less time than its return.
LARGE = 128 << 10
# Huge pages are 2 MiB on the machines that have them; multiples of it let one block serve many sizes.
_GRAIN = 2 << 20
_MOST_IDLE = 64
# PyPy receives into no view of a ctypes array, and would return blocks late.
_REUSES = sys.implementation.name == "cpython"


def _aligned(total: int) -> memoryview:
    """``total`` zeroed bytes on a 64-byte boundary."""
    block = bytearray(total + ALIGNMENT)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    start = -address % ALIGNMENT
    return memoryview(block)[start : start + total]


def _new(size: int) -> mmap.mmap:
    """A new mapping, with huge pages where it is large."""
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _GRAIN and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            block.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without huge pages: slower, but correct
    return block


@functools.lru_cache(64)
def _bytes_type(size: int) -> Any:
    """The ctypes type of ``size`` bytes; making it takes longer than receiving 1 MB."""
    return ctypes.c_char * size


def give_back_memory() -> None:
    """Return to the system what the C library keeps of freed memory. One call, some ms."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl keeps little
    if trim is not None:
        trim(0)


def default_cap() -> int:
    """Idle bytes a pool may keep: an eighth of the machine's memory, at most 1 GiB."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        memory = 2 << 30
    return min(memory // 8, 1 << 30)


def no_memory(size: int) -> LimitExceeded:
    """The error for an array of ``size`` bytes, for which the system has no memory."""
    return LimitExceeded(f"no memory here for {size} bytes of arrays")


class Pool:
    """Provides memory for arrays, for one thread at a time. There is no call to give it back.

    A large block is lent as a ctypes array, to which all views of it refer. The end of that array, in any thread, makes
    the block idle again.
    """

    def __init__(self, cap: int = 0) -> None:
        self._cap = cap or default_cap()
        self._idle: List[mmap.mmap] = []  # the oldest first; changed by single operations, since threads share it

    def take(self, size: int) -> memoryview:
        """``size`` bytes on a 64-byte boundary; their contents are undefined.

        Raises `LimitExceeded` where the system has no such memory.
        """
        if size < LARGE or not _REUSES:
            return _aligned(size)
        whole = 1 << (size - 1).bit_length() if size <= _GRAIN else -(-size // _GRAIN) * _GRAIN
        try:
            block = self._reused(whole) or _new(whole)
        except (OSError, OverflowError):
            raise no_memory(size) from None
        lent = _bytes_type(len(block)).from_buffer(block)
        weakref.finalize(lent, self._give_back, block).atexit = False
        return memoryview(lent).cast("B")[:size]

    def take_all(self, sizes: Sequence[int]) -> List[memoryview]:
        """One block for each size, each 64-byte aligned; small ones share one allocation."""
        if len(sizes) == 1:
            return [self.take(sizes[0])]
        starts: List[int] = []
        total = 0
        for size in sizes:
            starts.append(total)
            if size < LARGE:
                total += -(-size // ALIGNMENT) * ALIGNMENT
        small = self.take(total)
        return [self.take(size) if size >= LARGE else small[start : start + size] for start, size in zip(starts, sizes)]

    @property
    def idle_bytes(self) -> int:
        """Bytes of the blocks that wait to be reused."""
        return sum(map(len, list(self._idle)))

    def drop_idle(self) -> None:
        """Return the blocks that wait to be reused to the system."""
        self._idle.clear()

    def _reused(self, whole: int) -> Optional[mmap.mmap]:
        """An idle block of ``whole`` bytes, twice as many at most; None if there is none."""
        for block in reversed(list(self._idle)):
            if whole <= len(block) <= 2 * whole:
                try:
                    self._idle.remove(block)
                    return block
                except ValueError:
                    continue  # dropped meanwhile
        return None

    def _give_back(self, block: mmap.mmap) -> None:
        if len(block) > self._cap:
            return
        self._idle.append(block)
        while self._idle and (len(self._idle) > _MOST_IDLE or self.idle_bytes > self._cap):
            del self._idle[:1]
