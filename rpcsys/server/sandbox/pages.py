"""Memory that loading a library has touched and that nobody needs for now.

Relocating a large library reads most of its symbol tables, and these pages then count as this process's
(measured: 5.8 MB for libtvm_runtime with what it needs, in a server that serves nothing). They are clean: the
system takes them back when told, and brings them again from the file, or its cache, when they are used.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence

_MADV_DONTNEED = 4


def release(libraries: Sequence[str]) -> int:
    """Give back the clean pages of libraries whose file names begin so; how many bytes of mappings that were.

    Only mappings that cannot be written to and hold no changed page are touched: there is nothing in them to lose.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    released = 0
    for start, end in list(_clean(tuple(libraries))):
        if libc.madvise(start, end - start, _MADV_DONTNEED) == 0:
            released += end - start
    return released


def _clean(libraries: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """The unchanged, unwritable mappings of the libraries; none where the system does not tell."""
    found: tuple[int, int] | None = None
    try:
        with open("/proc/self/smaps") as maps:
            for line in maps:
                fields = line.split()
                if fields[0].endswith(":"):
                    if fields[0] in ("Private_Dirty:", "Shared_Dirty:") and fields[1] != "0":
                        found = None
                    elif fields[0] == "VmFlags:" and found is not None:  # the last line of a mapping
                        yield found
                        found = None
                    continue
                start, _, end = fields[0].partition("-")
                ours = len(fields) == 6 and os.path.basename(fields[5]).startswith(libraries)
                found = (int(start, 16), int(end, 16)) if ours and fields[1][1] == "-" else None
    except OSError:
        return
