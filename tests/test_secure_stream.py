"""What encrypted streams do beyond others: cuts, changes, interruptions inside OpenSSL's calls, last words.

That they do all that other streams do is in the tests of those, which run with and without TLS.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rpcsys
from rpcsys import stream as streams
from rpcsys.link import tls
from rpcsys.link.tls import Tunnel
from rpcsys.secure_stream import SecureStream, open_secure
from rpcsys.stream import DONT_WAIT, Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame
from rpcsys.wire.limits import DEFAULT
from rpcsys.wire.reader import FrameReader
from tests import secured

LAST = FrameReader().feed(b"".join(frames.encode(frames.ERROR, 0, {"type": "MemoryLimit"})))[0]


PACKAGE = str(Path(rpcsys.__file__).parent)
#: Streams in Python, and of the library.
BOTH = pytest.mark.parametrize("native", [False, True][: 1 + streams.SPEEDUPS], ids=["python", "native"])


def opened(sock: socket.socket, tunnel: Tunnel, native: bool, *more: Any) -> Stream:
    stream = open_secure(sock, tunnel, *more)
    return stream.finished() if native else stream


def ends(native: bool, *more: Any) -> tuple[Stream, SecureStream]:
    one, other = socket.socketpair()
    client, server = secured.tunnels()
    return opened(one, client, native, *more), open_secure(other, server)


@pytest.fixture(params=[False, True][: 1 + streams.SPEEDUPS], ids=["python", "native"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Stream, SecureStream]]:
    """A stream of either kind, and one in Python."""
    both = ends(request.param)
    yield both
    for end in both:
        end.close()


def call(call_id: int, size: int) -> list[Any]:
    return frames.encode(frames.CALL, call_id, {"a": np.arange(size, dtype="u1")})


def content(frame: Frame | None) -> bytes:
    assert frame is not None
    return bytes(frame.get("a").data)


def expected(size: int) -> bytes:
    return np.arange(size, dtype="u1").tobytes()


@BOTH
@given(sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=6), chance=st.randoms())
@settings(max_examples=40)
def test_frames_arrive_through_any_cuts(native: bool, sizes: list[int], chance: random.Random) -> None:
    client, server = secured.tunnels()
    for number, size in enumerate(sizes):
        client.write(call(number, size))
    data = client.outgoing()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream, got = opened(ours, server, native), []
        while data:
            cut = chance.randrange(1, 40_000)
            theirs.sendall(data[:cut])
            data = data[cut:]
            while (frame := stream.receive(DONT_WAIT)) is not None:
                got.append((frame.call_id, content(frame)))
        assert got == [(number, expected(size)) for number, size in enumerate(sizes)]


@BOTH
@given(place=st.integers(0, 10_000), change=st.integers(1, 255))
@settings(max_examples=60)
def test_a_changed_byte_ends_the_stream(native: bool, place: int, change: int) -> None:
    client, server = secured.tunnels()
    client.write(call(1, 900))
    data = bytearray(client.outgoing())
    data[place % len(data)] ^= change
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(Ended):
            opened(ours, server, native).receive()


@BOTH
@pytest.mark.parametrize("kept", range(0, 3000, 97))
def test_a_result_that_is_cut_is_no_array(native: bool, kept: int) -> None:
    client, server = secured.tunnels()
    client.write(call(1, 3000))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(client.outgoing()[:kept])
        theirs.close()
        with pytest.raises(Ended, match="the connection was closed"):
            opened(ours, server, native).receive()


def test_frames_before_a_broken_record_are_received(pair: tuple[Stream, SecureStream]) -> None:
    ours, theirs = pair
    theirs.send(call(1, 10))
    theirs.send(call(2, 40_000))
    theirs.socket.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert content(ours.receive()) == expected(10)
    assert content(ours.receive()) == expected(40_000)
    with pytest.raises(Ended):
        ours.receive(DONT_WAIT)


def test_bytes_that_poll_does_not_show_are_waited_for(pair: tuple[Stream, SecureStream]) -> None:
    """A second frame is decrypted, or with OpenSSL, when the first one was received."""
    ours, theirs = pair
    theirs.send([*call(1, 70_000), *call(2, 70_000), *frames.pack(frames.PING, 3)])
    waits = 0
    for size in (70_000, 70_000):
        frame = None
        while frame is None:
            assert ours.wait(10.0)
            waits += not select.select([ours.socket], [], [], 0)[0]
            frame = ours.receive(DONT_WAIT, 20_000)
        assert len(content(frame)) == size
    assert waits
    last = ours.receive(DONT_WAIT)
    assert last is not None
    assert last.call_id == 3
    assert not ours.held
    assert ours.wait(0.0) == 0


def test_a_peer_that_reads_nothing_gets_all_in_order_later(pair: tuple[Stream, SecureStream]) -> None:
    ours, theirs = pair

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ours.send(call(1, 3_000_000), stop)
    came = threading.Thread(target=lambda: got.extend(theirs.receive() for _ in range(2)))
    got: list[Frame | None] = []
    came.start()
    assert ours.resume(lambda: time.sleep(0.001), 20.0)
    ours.send(call(2, 100))
    came.join(20)
    assert [content(frame) for frame in got] == [expected(3_000_000), expected(100)]


def test_what_is_sent_at_once_comes_behind_what_waits(pair: tuple[Stream, SecureStream]) -> None:
    ours, theirs = pair
    ours.send(call(1, 100))
    ours.send_at_once(frames.pack(frames.PING, 2))
    assert content(theirs.receive()) == expected(100)
    ping = theirs.receive()
    assert ping is not None
    assert ping.call_id == 2
    theirs.close()
    with pytest.raises(OSError, match="pipe"):
        ours.send_at_once(frames.pack(frames.PING, 3))


class Interruption(Exception):
    """What the handler of the signal raises."""


def interrupt(_: int, frame: FrameType | None) -> None:
    """Raise within the package, in `ssl`, and in `attempt` alone, but for what these call of others."""
    if frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        raise Interruption
    if frame is not None and (frame.f_code.co_filename == ssl.__file__ or _catches(frame)):
        raise Interruption


def _catches(frame: FrameType) -> bool:
    """Whether it is `attempt`'s, in the line of its ``try``: where the function begins, nothing catches yet."""
    return frame.f_code is attempt.__code__ and frame.f_lineno == attempt.__code__.co_firstlineno + 3


def attempt(results: list[Any], act: Callable[..., Any], *args: Any) -> bool:
    """Append what ``act`` returns; False if it was interrupted, maybe afterwards."""
    try:
        results.extend(map(act, *([arg] for arg in args)))
    except Interruption:
        return False
    return True


@contextlib.contextmanager
def stormy() -> Iterator[None]:
    """Hundreds of interruptions, most of them while OpenSSL works."""
    main, over = threading.main_thread().ident or 0, threading.Event()

    def run() -> None:
        while not over.wait(0.0007):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


SIZE = 24 << 20


def receive_in_a_storm(native: bool, pieces: list[Any]) -> tuple[Frame | None, int]:
    """The frame that arrives, None if the stream is torn; and how often its receipt was interrupted."""
    ours, theirs = ends(native)
    sender = threading.Thread(target=_send_all, args=(theirs, pieces))
    sender.start()
    frame: list[Frame | None] = []
    times = 0
    with stormy(), contextlib.suppress(Ended):  # Python's may be torn within one receipt
        while not frame and (not times or not ours.torn):
            times += not attempt(frame, ours.receive, 0)
    ours.close()
    sender.join()
    theirs.close()
    return frame[0] if frame else None, times


def _send_all(stream: Stream, pieces: list[Any]) -> None:
    with contextlib.suppress(Ended):
        stream.send(pieces)


@BOTH
def test_interrupted_receipts_lose_nothing(native: bool) -> None:
    """A handler raises within receive, within OpenSSL's work, and in between.

    In Python, the stream is torn between the receipt of bytes and their count, which is rare: a session would end.
    """
    data = os.urandom(SIZE)
    pieces = frames.encode(frames.CALL, 1, {"a": np.frombuffer(data, "u1")})
    frame = None
    for _ in range(1 if native else 10):
        frame, times = receive_in_a_storm(native, pieces)
        if frame is not None:
            break
    assert content(frame) == data
    assert times


def test_interrupted_sends_lose_and_repeat_nothing(pair: tuple[Stream, SecureStream]) -> None:
    ours, theirs = pair
    data = os.urandom(SIZE)
    pieces = frames.encode(frames.CALL, 1, {"a": np.frombuffer(data, "u1")})
    got: list[Frame | None] = []
    reader = threading.Thread(target=lambda: got.append(theirs.receive()))
    reader.start()
    with stormy():
        times, done = int(not attempt([], ours.send, pieces)), False
        while times and not done:
            done = attempt([], ours.resume, lambda: None, 60.0)
            times += not done
    reader.join(60)
    assert content(got[0]) == data
    assert times


@BOTH
@pytest.mark.parametrize("cut", [0, 1, 700])
def test_the_last_words_are_a_frame(native: bool, cut: int) -> None:
    """The process is killed between two records, or in the middle of one."""
    found = []

    def find(tail: bytes) -> Frame | None:
        found.append(tail)
        return LAST if tail.endswith(b"why it ended") else None

    ours, theirs = ends(native, DEFAULT, None, find)
    theirs.send(call(1, 10))
    theirs._encrypt(memoryview(bytes(1500)), [])
    theirs.socket.sendall(theirs._tunnel.outgoing()[:cut] + b"t\xf2\x0f\x00why it ended")
    theirs.close()
    assert content(ours.receive()) == expected(10)
    with pytest.raises(Ended):
        ours.receive()
    assert ours.last_frame() is LAST
    assert len(found[-1]) <= 2048
    assert ours.last_frame() is None
    ours.close()


def test_a_handshake_with_a_silent_end_takes_so_long_and_no_longer() -> None:
    one, other = socket.socketpair()
    with one, other:
        stream = open_secure(one, tls.Tunnel(tls.server_context(secured.OWN), server=True))
        other.sendall(b"\x16\x03\x01\x02")
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            stream.handshake(begun + 0.2)
        assert 0.19 <= time.monotonic() - begun < 5
