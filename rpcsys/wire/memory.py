"""Memory for received arrays: reused, and 64-byte aligned, since a vectorised kernel can fault on less.

Fresh pages cost more than the transfer (throughput of 64 MB, a raw socket with a reused buffer being 1: bytearray 0.49,
plain mapping 0.45, this about 1.0). Blocks from a page on are private mappings that are kept, large ones in huge pages.
"""

from __future__ import annotations

import collections
import ctypes
import mmap
import os
import sys
from typing import DefaultDict, List, Optional, Sequence

from rpcsys.errors import LimitExceeded

ALIGNMENT = 64
PAGE = mmap.PAGESIZE
#: Above this, blocks have huge pages.
LARGE = 1 << 20
# Huge pages are 2 MiB on the machines that have them; a multiple lets one block serve many sizes.
_GRAIN = 2 << 20
# Blocks kept for each power of two, from a page to LARGE and a page before it; 12 MB in all. Without them, each
# bytearray of 1 MB has 256 page faults. Few, because a process may have 65,530 mappings; a bytearray replaces others.
_PAGES_KEPT = 4


def _aligned(total: int) -> memoryview:
    """``total`` zeroed bytes on a 64-byte boundary."""
    block = bytearray(total + ALIGNMENT)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    start = -address % ALIGNMENT
    return memoryview(block)[start : start + total]


def _new(size: int) -> mmap.mmap:
    """A new mapping, with huge pages where it is large."""
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size > LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            block.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without huge pages: slower, but correct
    return block


def _references_when_free() -> int:
    """The count that `Pool` reads for a block without views: the list's reference, and those of this Python's loop."""
    for block in [bytearray()]:
        count = sys.getrefcount(block)
    return count


_FREE = _references_when_free()


def _default_cap() -> int:
    """Idle bytes a pool may keep: an eighth of the machine's memory, at most 1 GiB."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        memory = 2 << 30
    return min(memory // 8, 1 << 30)


class Pool:
    """Provides memory for arrays, for one thread at a time.

    A mapping is free again when its reference count shows no view. There is no call to give it back.
    """

    def __init__(self, cap: int = 0) -> None:
        self._cap = cap or _default_cap()
        self._kept: List[mmap.mmap] = []
        self._kept_pages: DefaultDict[int, List[mmap.mmap]] = collections.defaultdict(list)

    def take(self, size: int) -> memoryview:
        """``size`` bytes on a 64-byte boundary; their contents are undefined.

        Raises `LimitExceeded` where the system has no such memory.
        """
        if size < PAGE:
            return _aligned(size)
        mapping = self._large(size) if size > LARGE else self._of_pages(size)
        return _aligned(size) if mapping is None else memoryview(mapping)[:size]

    def take_behind(self, size: int) -> Optional[mmap.mmap]:
        """A page, then at least ``size`` bytes; None if no mapping is free. For a head and an array received together.

        The pool always keeps a mapping for at most `LARGE` bytes.
        """
        whole = PAGE + size
        return self._of_pages(whole) if size <= LARGE else self._large(whole)

    def take_all(self, sizes: Sequence[int]) -> List[memoryview]:
        """One block for each size, each 64-byte aligned; small ones share one allocation."""
        if len(sizes) == 1:
            return [self.take(sizes[0])]
        starts: List[int] = []
        total = 0
        for size in sizes:
            starts.append(total)
            if size <= LARGE:
                total += -(-size // ALIGNMENT) * ALIGNMENT
        # Many small ones may be large together, and a mapping costs nothing until it is filled.
        small = self.take(total) if total > LARGE else _aligned(total)
        return [self.take(size) if size > LARGE else small[start : start + size] for start, size in zip(starts, sizes)]

    def _of_pages(self, size: int) -> Optional[mmap.mmap]:
        """A free mapping of at least ``size`` bytes that is kept; None if all are in use."""
        order = (size - 1).bit_length()
        kept = self._kept_pages[order]
        for mapping in kept:
            if sys.getrefcount(mapping) == _FREE:
                return mapping
        if len(kept) == _PAGES_KEPT:
            return None
        kept.append(_new(1 << order))
        return kept[-1]

    def _large(self, size: int) -> mmap.mmap:
        rounded = -(-size // _GRAIN) * _GRAIN
        for mapping in self._kept:
            if rounded <= len(mapping) <= 2 * rounded and sys.getrefcount(mapping) == _FREE:
                return mapping
        try:
            block = _new(rounded)
        except (OSError, OverflowError):
            raise LimitExceeded(f"no memory here for {size} bytes of arrays") from None
        if rounded <= self._cap:
            self._kept.append(block)
            while sum(map(len, self._kept)) > self._cap:  # drop the oldest
                self._kept.pop(0)
        return block
