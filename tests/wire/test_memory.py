"""Memory for arrays: aligned, reused only without references, and kept up to the cap."""

from __future__ import annotations

import ctypes
import queue
import subprocess
import threading

import numpy as np
import psutil
import pytest

from rpcsys.errors import LimitExceeded
from rpcsys.wire import memory
from rpcsys.wire.memory import ALIGNMENT, LARGE, Pool, give_back_memory
from tests.device_files import ROOT
from tests.pythons import pythons

MIB = 1 << 20


def address(view):
    return np.frombuffer(view, "u1").__array_interface__["data"][0]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096, LARGE, LARGE + 1, 5 * MIB])
def test_one_block(size):
    view = Pool().take(size)
    assert len(view) == size
    assert not view.readonly
    assert address(view) % ALIGNMENT == 0


def test_an_empty_block():
    assert len(Pool().take(0)) == 0
    assert [len(view) for view in Pool().take_all([0, 0])] == [0, 0]


@pytest.mark.parametrize(
    "sizes", [[], [1, 1], [64, 0, 65], [LARGE, LARGE, 3], [LARGE + 1, 10, 3 * MIB, 10], [100] * 2000]
)
def test_blocks_do_not_overlap(sizes):
    views = Pool().take_all(sizes)
    assert [len(view) for view in views] == sizes
    for number, view in enumerate(views):
        view[:] = bytes([number % 256]) * len(view)
        assert not len(view) or address(view) % ALIGNMENT == 0
    assert all(set(view) <= {number % 256} for number, view in enumerate(views[:50]))


def test_a_large_block_is_reused_when_no_view_lives():
    pool = Pool()
    first = pool.take(3 * MIB)
    place = address(first)
    part = first[10:20]
    del first
    assert address(pool.take(3 * MIB)) != place  # a slice is a view, too
    part.release()
    assert address(pool.take(3 * MIB)) == place


def test_a_block_that_numpy_holds_is_not_reused():
    pool = Pool()
    array = np.frombuffer(pool.take(3 * MIB), "f4")[5:].reshape(-1, 1)
    array[:] = 7
    others = [pool.take(3 * MIB) for _ in range(3)]
    for other in others:
        other[:] = b"\0" * len(other)
    assert (array == 7).all()
    place = array.__array_interface__["data"][0] - 20
    del array
    assert address(pool.take(3 * MIB)) == place


def test_a_block_serves_sizes_from_half_of_it():
    pool = Pool()
    place = address(pool.take(8 * MIB))
    assert address(pool.take(4 * MIB)) == place
    assert address(pool.take(8 * MIB)) == place
    assert address(pool.take(2 * MIB)) != place  # a small array must not hold a large block


def test_the_pool_keeps_no_more_than_its_cap():
    pool = Pool(cap=10 * MIB)
    views = [pool.take(4 * MIB) for _ in range(5)]
    assert pool.idle_bytes == 0
    del views
    assert pool.idle_bytes == 8 * MIB
    pool.take(30 * MIB)
    assert pool.idle_bytes == 8 * MIB


def test_idle_blocks_are_dropped():
    pool = Pool()
    kept, gone = pool.take(4 * MIB), pool.take(4 * MIB)
    del gone
    pool.drop_idle()
    assert pool.idle_bytes == 0
    kept[:] = bytes(4 * MIB)  # a block that is lent stays
    del kept
    assert pool.idle_bytes == 4 * MIB


def test_blocks_that_come_back_in_other_threads():
    """Their end may be in any thread, while another one takes blocks."""
    pool = Pool(cap=64 * MIB)
    views = queue.SimpleQueue()

    def drop():
        while views.get() is not None:
            pass

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(2000):
        view = pool.take((1 + number % 5) * 128 << 10)
        view[:3] = view[-3:] = b"now"
        views.put(view)
    for _ in threads:
        views.put(None)
    for thread in threads:
        thread.join()
    assert 0 < pool.idle_bytes <= 64 * MIB


def test_the_default_cap_is_a_part_of_the_machine():
    assert 0 < memory.default_cap() <= 1 << 30


@pytest.mark.parametrize("size", [1 << 55, 1 << 62, 1 << 63])
def test_more_memory_than_the_system_has_is_refused(size):
    with pytest.raises(LimitExceeded, match=f"no memory here for {size} bytes"):
        Pool().take(size)


REUSE = """
import sys
sys.path.insert(0, sys.argv[1])
from rpcsys.wire.memory import Pool
pool = Pool()
def place(view):
    import ctypes
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
first = pool.take(3 << 20)
held = memoryview(first)[7:9]
where = place(first)
del first
assert place(pool.take(3 << 20)) != where, "a block in use was handed out"
del held
assert place(pool.take(3 << 20)) == where, "a free block was not used again"
again = [pool.take(3 << 20) for _ in range(4)]
assert len({place(view) for view in again}) == 4
print("ok")
"""


@pytest.mark.parametrize("version", pythons())
def test_blocks_are_reused_on_every_installed_python(version):
    done = subprocess.run(
        [pythons()[version], "-I", "-S", "-c", REUSE, str(ROOT)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "ok\n", done.stderr


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
    assert resident() < kept - 80 * MIB
