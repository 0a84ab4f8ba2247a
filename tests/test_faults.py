"""Every call of the C library that may fail, one after another: nothing is worse than an exception."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import random
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest

from rpcsys import stream
from rpcsys.errors import RpcsysError
from rpcsys.stream import DONT_WAIT
from rpcsys.wire import frames
from tests.device import Device

try:
    LIBRARY = ctypes.PyDLL(stream.speedups.__file__)
    COUNTER = ctypes.c_int.in_dll(LIBRARY, "faults_after")
except (AttributeError, ValueError):
    pytest.skip("the library is not compiled with faults (tests/test_sanitizers.py)", allow_module_level=True)

#: More calls than any of the cases makes.
MOST = 5000


@contextlib.contextmanager
def fault(number: int) -> Iterator[None]:
    """The call ``number`` of the library fails inside."""
    COUNTER.value = number
    try:
        yield
    finally:
        COUNTER.value = 0


def each_fails(case: Callable[[], Any], *errors: type[BaseException]) -> int:
    """Run ``case`` again and again, each time with the next call failing, until none is left. Returns their number."""
    for number in range(1, MOST):
        with fault(number):
            with contextlib.suppress(MemoryError, *errors):
                case()
            if COUNTER.value:
                return number - 1
    raise AssertionError("it has no end")


def call(*sizes: int, name: str = "f") -> list[Any]:
    return frames.encode(frames.CALL, 1, {"f": name, "a": [memoryview(bytes(size)) for size in sizes]})


CALLS = (
    [call()],
    [call(3000), call(3000), call(3000)],
    [call(3000), call(3000), call(3000, name="g"), call(40)],
    [call(70_000), call(70_000)],
    [call(2 << 20), call(2 << 20)],
    [call(0, 5, 20_000)],
    [call(*[1] * 100)],
    [frames.encode(frames.CALL, 1, {"f": ["x" * 900] * 100})],
    [frames.pack(frames.CHUNK, 1, b"", [bytes(100)])],
    [frames.pack(frames.PING, 1) + frames.pack(frames.PING, 2) + frames.pack(frames.LOG, 3)],
)


@pytest.mark.parametrize("pieces", CALLS)
def test_receiving(pieces: list[list[Any]]) -> None:
    def receive() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            receiving = stream.NativeStream(theirs)
            for data in pieces:
                left = memoryview(b"".join(map(bytes, data)))
                while left:
                    with contextlib.suppress(BlockingIOError):
                        left = left[ours.send(left) :]
                    frame = receiving.receive(DONT_WAIT)
                if frame is not None:
                    assert [bytes(view) for view in frame.buffers] == [bytes(len(view)) for view in frame.buffers]
                    receiving.skip(frames.PING)
                    receiving.next()

    assert each_fails(receive, RpcsysError) >= 5


@pytest.mark.parametrize("pieces", [*CALLS[:3], [[b"x" * 10] * 200]])
def test_sending_goes_on_after_a_failure(pieces: list[list[Any]]) -> None:
    def send() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            sending = stream.NativeStream(ours)
            came = bytearray()

            def read() -> None:
                came.extend(theirs.recv(4096))

            expected = b"".join(bytes(piece) for data in pieces for piece in data)
            for data in pieces:
                sending.sending = None
                try:
                    sending.send(data, read)
                except MemoryError:
                    if sending.sending is None:  # nothing of it is sent
                        break
                    assert sending.resume(read, 20.0)
            ours.close()
            while data := theirs.recv(1 << 20):
                came += data
            assert expected.startswith(came)

    assert each_fails(send) >= 3


def test_locks() -> None:
    def use() -> None:
        lock = stream.speedups.Lock()
        with lock:
            assert not lock.acquire(timeout=0.0001)

    assert each_fails(use) >= 1


def test_the_start_of_the_module() -> None:
    def load() -> None:
        name = "rpcsys.speedups"
        loader = importlib.machinery.ExtensionFileLoader(name, stream.speedups.__file__)
        spec = importlib.util.spec_from_loader(name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        with module.Lock():
            pass

    assert each_fails(load) >= 20


class Sessions:
    """A session, which is opened again once it is lost."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._session: Any = None

    def get(self) -> Any:
        if self._session is None or self._session._channel.broken is not None:
            self.close()
            self._session = self._stack.enter_context(self._stack.enter_context(Device(allow_pickle=True)).session())
            work(self._session)
        return self._session

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    with contextlib.closing(Sessions()) as made:
        yield made


def work(session: Any) -> None:
    """Calls as the library makes them, and their right results."""
    echo = session.get_function("testing.echo")
    array = np.arange(1000)
    assert (echo(array) == array).all()
    assert echo(array[::2])[1] == 2
    assert echo(7) == 7
    assert list(echo.map(range(3))) == [0, 1, 2]
    assert [future.result(30) for future in [echo.submit(number) for number in range(3)]] == [0, 1, 2]


def test_the_calls_of_a_client(sessions: Sessions) -> None:
    """Where memory fails, a call is an error, or Python makes it. Later calls are right, or the session is lost."""
    number, left = 0, 0
    while not left:
        number += random.randint(1, 3)  # each run fails other calls
        assert number < MOST
        session = sessions.get()
        with contextlib.suppress(RpcsysError):
            with fault(number), contextlib.suppress(MemoryError):
                try:
                    work(session)
                finally:
                    left = COUNTER.value
            work(session)
    assert number > 50


def faults_there(library: str, number: int) -> int:
    """Let a call of the library fail in this process; the number that was left of the one before."""
    import ctypes

    counter = ctypes.c_int.in_dll(ctypes.PyDLL(library), "faults_after")
    left, counter.value = counter.value, number
    return left


def test_the_calls_of_a_server(sessions: Sessions) -> None:
    """Where memory fails, a call is an error, or the session's process ends as for any other exception."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    library = stream.speedups.__file__
    number, left = 0, 0
    while not left:
        number += random.randint(1, 3)
        assert number < MOST
        session = sessions.get()
        with contextlib.suppress(RpcsysError):
            session.run(faults_there, library, number)
            with contextlib.suppress(RpcsysError):
                work(session)
            left = session.run(faults_there, library, 0)
            work(session)
    assert number > 50
