"""The C library by itself: what it shares with Python, its memory, its locks, and misuse from Python."""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

from rpcsys import compiled, stream
from rpcsys.errors import RemoteError
from rpcsys.wire import frames, limits
from rpcsys.wire.head import parse
from tests.device import Device, in_call, until
from tests.device_files import ROOT

NATIVE = ROOT / "native"
UNFIT = sys.implementation.name != "cpython" or "t" in sys.abiflags or os.environ.get("RPCSYS_SPEEDUPS") == "0"

speedups: Any = stream.speedups
needed = pytest.mark.skipif(speedups is None, reason="the library is not built")


@pytest.mark.skipif(UNFIT or shutil.which("cc") is None, reason="this Python does not take the library")
def test_the_library_is_in_use_where_there_is_a_compiler():
    assert stream.SPEEDUPS, "type: .ci/setup dev"


def test_c_and_python_agree_on_numbers():
    text = (NATIVE / "speedups.h").read_text()
    defined = dict(re.findall(r"^#define (\w+) ([^/\n]+?)\s*(?:/\*.*)?$", text, re.MULTILINE))

    def value(name: str) -> int:
        return int(eval(defined[name].replace("u", "")))

    assert value("HEADER_BYTES") == frames.HEADER_BYTES
    assert (value("CALL"), value("RESULT"), value("CHUNK")) == (frames.CALL, frames.RESULT, frames.CHUNK)
    assert value("LAST_KIND") == max(frames.KINDS)
    assert value("MAX_CHUNK") == frames.MAX_CHUNK
    assert value("MADE_PER_BYTE") == limits.MADE_PER_BYTE
    assert value("REMEMBERED_BYTES") == frames.REMEMBERED_BYTES
    assert value("REMEMBERED_HEADS") == frames.REMEMBERED_HEADS
    assert value("INTERFACE") == compiled.INTERFACE


# ---------------------------------------------------------------- memory


@pytest.fixture
def pair():
    ours, theirs = (stream.NativeStream(sock) for sock in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def received(pair, size: int) -> Any:
    """An array of ``size`` bytes that was received."""
    ours, theirs = pair
    thread = threading.Thread(target=ours.send, args=(frames.encode(frames.CALL, 1, {"a": memoryview(bytes(size))}),))
    thread.start()
    frame = theirs.receive()
    thread.join()
    return np.frombuffer(frame.buffer(0), np.uint8)


@needed
@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096, 1 << 20, (1 << 20) + 1, 5 << 20])
def test_memory_is_aligned_and_reused(pair, size):
    places = set()
    for _ in range(10):
        array = received(pair, size)
        assert array.size == size
        assert array.ctypes.data % 64 == 0
        places.add(array.ctypes.data)
        del array
    assert len(places) <= 3  # before and after such a frame is expected


@needed
def test_kept_arrays_do_not_overlap(pair):
    kept = [received(pair, 70_000) for _ in range(50)]
    for number, array in enumerate(kept):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(kept))


@needed
@pytest.mark.parametrize("size", [1000, 3 << 20])
def test_arrays_outlive_the_idle_memory_beside_them(pair, size):
    kept, gone = received(pair, size), received(pair, size)
    kept[:] = 7
    del gone
    received(pair, 1)  # the frame before it is settled
    speedups.drop_idle_memory()
    assert (kept == 7).all()
    again = received(pair, size)
    again[:] = 8
    assert (kept == 7).all()


@needed
def test_idle_memory_grows_until_it_is_dropped(pair):
    before = resident()
    array = received(pair, 96 << 20)
    del array
    received(pair, 1)  # the frame before it is settled
    assert resident() > before + (80 << 20)
    speedups.drop_idle_memory()
    assert resident() < before + (16 << 20)


@needed
def test_many_small_buffers_take_little_memory(pair):
    ours, theirs = pair
    arrays = [memoryview(b"x") for _ in range(5000)]
    before = resident()
    kept = []
    for _ in range(5):
        thread = threading.Thread(target=ours.send, args=(frames.encode(frames.CALL, 1, {"a": arrays}),))
        thread.start()
        kept.append(theirs.receive())
        thread.join()
    assert [bytes(view) for view in kept[-1].buffers] == [b"x"] * 5000
    assert resident() - before < 50 << 20


def resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------- locks


@needed
def test_a_lock_is_as_threadings():
    lock = speedups.Lock()
    assert lock.acquire()
    assert lock.locked()
    assert not lock.acquire(False)
    assert not lock.acquire(timeout=0.01)
    lock.release()
    with lock:
        assert lock.locked()
    assert not lock.locked()
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        lock.release()


@needed
def test_a_waiting_thread_gets_the_lock():
    lock, order = speedups.Lock(), []
    lock.acquire()
    thread = threading.Thread(target=lambda: (lock.acquire(timeout=1e12), order.append("got")))
    thread.start()
    until(lambda: in_call_futex(thread), "the thread to wait")
    order.append("released")
    lock.release()
    thread.join(30)
    assert order == ["released", "got"]


def in_call_futex(thread: threading.Thread) -> bool:
    return in_call(thread, "futex")


@needed
def test_a_signal_ends_the_wait_for_a_lock():
    lock = speedups.Lock()
    lock.acquire()

    def interrupt():
        until(lambda: in_call_futex(threading.main_thread()), "the main thread to wait")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    thread.join()


@needed
def test_a_signal_does_not_lengthen_a_wait():
    lock = speedups.Lock()
    lock.acquire()
    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        assert not lock.acquire(timeout=1.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert 0.99 < time.monotonic() - began < 20


# ---------------------------------------------------------------- misuse


@needed
@pytest.mark.parametrize(
    "misuse",
    [
        lambda it: it.Stream(0),
        lambda it: it.Stream(0, None, parse, OSError, it.Frame),
        lambda it: it.Stream(0, limits.DEFAULT, parse, OSError, 5),
        lambda it: it.Stream(0, limits.DEFAULT, parse, OSError, int),
        lambda it: it.Exchange(1, 2, 3, {}, (), [], None, None, None),
        lambda it: it.CallLoop(),
        lambda it: it.FunctionBase()._bind(5, ()),
        lambda it: it.FunctionBase()(),
        lambda it: it.Frame().buffers[0],
        lambda it: it.Frame().parsed,
        lambda it: bytes(memoryview(it.Block()))[5],
    ],
)
def test_misuse_is_an_error(misuse):
    with pytest.raises((TypeError, AttributeError, IndexError, BufferError)):
        misuse(speedups)


@needed
def test_a_refusal_that_does_not_raise_is_an_error(pair):
    class Lenient:
        max_body = max_head = max_made = 10

        def refuse_header(self, *_: Any) -> None:
            pass

    ours, _ = pair
    reader = speedups.Stream(pair[1].fileno(), Lenient(), parse, stream.Ended, stream.NativeFrame)
    ours.send(frames.encode(frames.CALL, 1, {"a": memoryview(bytes(100))}))
    with pytest.raises(SystemError, match="refuse_header did not raise"):
        reader.receive()


@needed
def test_an_interruption_while_a_head_is_parsed_loses_nothing():
    """Of a frame that is received where an expected one belongs, too."""
    interrupted = []

    def parse_or_not(head: bytes) -> Any:
        if not interrupted and b"other" in head:
            interrupted.append(1)
            raise KeyboardInterrupt
        return parse(head)

    def call(name: str, fill: bytes) -> bytes:
        return b"".join(map(bytes, frames.encode(frames.CALL, 1, {"f": name, "a": memoryview(fill * 3000)})))

    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiving = speedups.Stream(theirs.fileno(), limits.DEFAULT, parse_or_not, stream.Ended, stream.NativeFrame)
        for fill in (b"1", b"2"):
            ours.sendall(call("first", fill))
            receiving.receive()
        ours.sendall(call("other", b"3"))
        with pytest.raises(KeyboardInterrupt):
            receiving.receive()
        assert not receiving.torn
        frame = receiving.receive()
        assert (frame.get("f"), bytes(frame.buffers[0])) == ("other", b"3" * 3000)


@needed
def test_a_function_may_be_bound_again_during_a_call():
    with Device() as device, device.session() as session:
        echo = session.get_function("testing.echo")
        assert echo(5) == 5  # the head is known from now on
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(echo(5)))
        os.kill(session.info["pid"], signal.SIGSTOP)
        thread.start()
        until(lambda: in_call(thread, "recv"), "the thread to wait")
        session._exchange = None
        echo._bind(None, ())
        os.kill(session.info["pid"], signal.SIGCONT)
        thread.join(30)
        assert [*results, echo(6)] == [5, 6]


@needed
def test_ids_of_calls_that_are_sent_together_begin_again():
    with Device() as device, device.session() as session:
        echo = session.get_function("testing.echo")
        assert list(echo.map(range(40))) == list(range(40))
        for last in range(stream.LAST_ID - 5, stream.LAST_ID + 1):
            session._channel._stream.last_id = last
            assert list(echo.map(range(40))) == list(range(40))


@needed
def test_the_module_ends_with_its_last_object():
    """Its state refers to its types, and they to it: a cycle that is collected."""
    loader = importlib.machinery.ExtensionFileLoader("rpcsys.speedups", speedups.__file__)
    spec = importlib.util.spec_from_loader("rpcsys.speedups", loader)
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    block, ended = module.Block(), weakref.ref(module)
    del module
    gc.collect()
    assert ended() is not None
    del block
    gc.collect()
    assert ended() is None


LITTLE_MEMORY = """
import resource, socket, threading
from rpcsys.stream import NativeStream
from rpcsys.wire import frames

ours, theirs = map(NativeStream, socket.socketpair())
call = frames.encode(frames.CALL, 1, {"a": memoryview(bytes(300 << 20))})
for _ in range(2):
    thread = threading.Thread(target=ours.send, args=(call,))
    thread.start()
    frame = theirs.receive()
    thread.join()
data = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (data + (100 << 20),) * 2)
ours.send(frames.pack(frames.PING, 2))
print(theirs.receive().call_id, len(frame.buffers[0]))
"""


@needed
def test_a_short_frame_needs_no_memory_for_another_long_one():
    """The session's memory is limited, and it keeps what came before."""
    assert subprocess.check_output([sys.executable, "-c", LITTLE_MEMORY], text=True) == f"2 {300 << 20}\n"


@needed
def test_streams_with_cycles_are_collected():
    class Parts:
        pass

    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = stream.NativeStream(ours)
        found.parts = parts = Parts()
        parts.stream = found
        address = id(parts)
        del found, parts
        gc.collect()
        assert not any(id(each) == address and type(each) is Parts for each in gc.get_objects())


# ---------------------------------------------------------------- growth


@needed
def test_calls_do_not_grow_a_process():
    """References, blocks and frames: any that leaked in a call would show after so many."""
    with Device() as device, device.session() as session:
        nop, echo = session.get_function("testing.nop"), session.get_function("testing.echo")
        array = np.arange(10_000)

        def calls() -> None:
            for _ in range(3000):
                nop()
                echo(array)
                echo(5)
            for future in [nop.submit() for _ in range(500)]:
                future.result()
            with pytest.raises(RemoteError, match="division by zero"):
                session.get_function("test.divide")(1, 0)

        def sizes() -> tuple[int, int]:
            gc.collect()
            with open("/proc/{pid}/statm".format(**session.info)) as file:
                return sys.getallocatedblocks(), int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        calls()
        before = sizes()
        for _ in range(3):
            calls()
        blocks, theirs = (after - earlier for after, earlier in zip(sizes(), before, strict=True))
        assert blocks < 1000
        assert theirs < 2 << 20


@needed
def test_reference_counts_stay(pair):
    """One frame of each kind of path: expected, in scratch, of several buffers, refused."""
    ours, theirs = pair
    data = b"".join(map(bytes, frames.encode(frames.CALL, 1, {"a": [memoryview(bytes(3000)), memoryview(bytes(7))]})))
    before = sys.getrefcount(limits.DEFAULT), sys.getrefcount(parse), sys.getrefcount(stream.NativeFrame)
    for _ in range(100):
        ours.socket.sendall(data)
        assert len(theirs.receive().buffers) == 2
        ours.send(frames.encode(frames.CALL, 2, {"a": memoryview(bytes(500))}))
        assert theirs.receive().call_id == 2
    after = sys.getrefcount(limits.DEFAULT), sys.getrefcount(parse), sys.getrefcount(stream.NativeFrame)
    assert all(abs(new - old) <= 3 for new, old in zip(after, before, strict=True))
