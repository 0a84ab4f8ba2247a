"""Memory that is returned to the system."""

from __future__ import annotations

import ctypes

import psutil
import pytest

from rpcsys.daemon.memory import give_back_memory

MB = 1 << 20


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library keeps little")
def test_the_memory_of_small_objects_is_given_back() -> None:
    malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
    malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [malloc(60_000) for _ in range(2000)]
    for block in blocks:
        ctypes.memset(block, 1, 60_000)
    for block in blocks[:-1]:  # the last one is above them all
        free(block)
    kept = resident()
    give_back_memory()
    free(blocks[-1])
    assert resident() < kept - 80 * MB
