"""Makes processes that have nothing of the one that makes them but the C library, a stack, and its descriptors.

Such a process waits for the end of a pipe, and runs no Python. Forking a copy of a Python process for that takes 1 ms
and its end another: for the tables of 4,000 pages, and because Python writes to pages that the copy then keeps.
"""

from __future__ import annotations

import ctypes
import os
from typing import Callable, Iterator, NamedTuple

from rpcsys.server.sandbox.processes import LIBC, check

CLONE_PARENT = 0x8000  # the new process is a child of this one's parent: clone(2)
_DONTFORK, _DOFORK = 10, 11  # madvise(2)
_READ_WRITE, _PRIVATE_ANONYMOUS = 3, 0x22
_FULLY_BUFFERED, _BUFFER = 0, 4096  # setvbuf(3)
_STACK, _FRAME = 1 << 16, 64  # bytes of a stack, and those left free at its top
_FILE = 4096  # more than a FILE has
_AROUND = 1 << 14  # bytes of a thread's own data on either side of its pointer


class _Mapping(NamedTuple):
    start: int
    end: int
    path: str


def prepare(pipe: int) -> Callable[[int], int]:
    """Make this process a maker of bare ones; return the function that makes one, with the flags of clone(2).

    It returns a PID, and raises OSError. A bare process exits when all writers of ``pipe`` are gone. Copies of this
    process by `os.fork` have no Python any more. Raises OSError.
    """
    file = _address("fdopen", ctypes.c_int(pipe), b"r")
    sizes = ctypes.c_size_t(_STACK), ctypes.c_int(_READ_WRITE), ctypes.c_int(_PRIVATE_ANONYMOUS)
    stack = _address("mmap", None, *sizes, ctypes.c_int(-1), ctypes.c_long(0))
    # The lowest part is the file's buffer: it would ask for memory, and an unbuffered one writes out what others have.
    LIBC.setvbuf(ctypes.c_void_p(file), ctypes.c_void_p(stack), _FULLY_BUFFERED, ctypes.c_size_t(_BUFFER))
    wait = ctypes.cast(LIBC.getc_unlocked, ctypes.c_void_p)
    _shed(wait.value or 0)
    for place, size in ((stack, _STACK), (file, _FILE), (_address("pthread_self") - _AROUND, 2 * _AROUND)):
        _advise(place, place + size, _DOFORK)
    top, given = ctypes.c_void_p(stack + _STACK - _FRAME), ctypes.c_void_p(file)

    def clone(flags: int) -> int:
        pid = int(LIBC.clone(wait, top, ctypes.c_int(flags), given))
        check(min(pid, 0))
        return pid

    return clone


def _address(name: str, *arguments: object) -> int:
    """Call the function ``name`` of C, which returns a pointer. Raises OSError if it returns none."""
    function = LIBC[name]  # another object than all others have, whose results are numbers
    function.restype = ctypes.c_void_p
    address = function(*arguments)
    if address in (None, ctypes.c_void_p(-1).value):
        check(-1)
    return int(address)


def _shed(code: int) -> None:
    """Leave all of this process's memory out of later copies but the C library, in which ``code`` is."""
    mappings = list(_mappings())
    library = next((one.path for one in mappings if one.start <= code < one.end), "")
    before = _Mapping(0, 0, "")
    for one in mappings:
        loader = os.path.basename(one.path).startswith(("ld-", "ld."))
        # Without a name behind the library's: its data that begin as zeros.
        follows = not one.path and one.start == before.end and bool(before.path)
        if loader or follows or one.path == library:
            before = one
        else:
            before = _Mapping(0, 0, "")
            _advise(one.start, one.end, _DONTFORK)


def _mappings() -> Iterator[_Mapping]:
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.split(maxsplit=5)
            start, _, end = fields[0].partition("-")
            yield _Mapping(int(start, 16), int(end, 16), fields[5].rstrip("\n") if len(fields) > 5 else "")


def _advise(start: int, end: int, advice: int) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    first = start // page * page
    LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), ctypes.c_int(advice))
