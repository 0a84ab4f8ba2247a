"""The stream of a session, over real sockets with small buffers."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from rpcsys import stream as streams
from rpcsys.errors import ProtocolError
from rpcsys.stream import DONT_WAIT, Ended, PythonStream
from rpcsys.wire import frames
from tests import secured

SMALL = 4096


@pytest.fixture
def pair(speedups):
    """Two streams with very small socket buffers."""
    socks = socket.socketpair()
    for sock in socks:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    ends = secured.open_both(socks)
    for end in ends:
        end.tick(30.0)
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize(("flags", "used"), [("", streams.SPEEDUPS), ("RPCSYS_SPEEDUPS=0", False)])
def test_the_environment_can_leave_the_speedups_unused(flags, used):
    python = [sys.executable, "-c", "from rpcsys.stream import SPEEDUPS; print(SPEEDUPS)"]
    assert subprocess.check_output(["env", *flags.split(), *python], text=True) == f"{used}\n"


def big(size, call_id=1):
    return frames.encode(frames.CALL, call_id, {"a": np.arange(size, dtype="u1")})


def content(frame):
    return bytes(frame.get("a").data)


def in_thread(work):
    """Run ``work`` in a thread. Returns a function that joins it and returns its result."""
    box = []
    thread = threading.Thread(target=lambda: box.append(work()), daemon=True)
    thread.start()

    def result():
        thread.join(30)
        assert box, "it still waits"
        return box[0]

    return result


def test_a_frame_larger_than_the_sockets(pair):
    ours, theirs = pair
    came = in_thread(theirs.receive)
    ours.send(big(1_000_000))
    assert content(came()) == np.arange(1_000_000, dtype="u1").tobytes()


@pytest.mark.parametrize("on_full", [None, lambda: None])
def test_more_pieces_than_one_sendmsg_takes(pair, on_full):
    ours, theirs = pair
    arrays = [np.full(7, number % 256, "u1") for number in range(5000)]
    came = in_thread(theirs.receive)
    ours.send(frames.encode(frames.CALL, 1, {"a": arrays}), on_full)
    assert [bytes(tensor.data) for tensor in came().get("a")] == [array.tobytes() for array in arrays]


def test_pieces_of_several_frames_in_one_send(pair):
    ours, theirs = pair
    ours.send(
        [*frames.pack(frames.PING, 1), *frames.encode(frames.CALL, 2, {"a": np.ones(9)}), *frames.pack(frames.PING, 3)]
    )
    assert [theirs.receive().call_id for _ in range(3)] == [1, 2, 3]


def test_nothing_is_sent_for_no_pieces(pair):
    ours, theirs = pair
    ours.send([])
    assert theirs.receive(DONT_WAIT) is None


class Slow:
    """A socket that sends a few bytes at a time, and sometimes none."""

    def __init__(self, sock, step):
        self._sock, self._step, self.calls = sock, step, 0

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def _busy(self, flags):
        self.calls += 1
        if flags & DONT_WAIT and self.calls % 3 == 0:
            raise BlockingIOError

    def send(self, data, flags):
        self._busy(flags)
        return self._sock.send(memoryview(data)[: self._step])

    def sendmsg(self, pieces, ancillary, flags):
        self._busy(flags)
        assert len(pieces) <= 1024
        return self._sock.send(b"".join(map(bytes, pieces))[: self._step])


@pytest.mark.parametrize("step", [1, 23, 24, 25, 1000])
def test_sends_that_take_a_part(step):
    socks = socket.socketpair()
    ours, theirs = (PythonStream(sock) for sock in socks)
    sent = frames.encode(frames.CALL, 1, {"a": [np.arange(40, dtype="u1"), np.arange(3, dtype="u1"), "x" * 5000]})
    expected = b"".join(map(bytes, sent))
    ours.socket = Slow(ours.socket, step)
    waits = []
    came = in_thread(theirs.receive)
    ours.send(sent, lambda: waits.append(1))
    assert came().get("a")[2] == "x" * 5000
    assert len(waits) == ours.socket.calls // 3 > 0
    assert len(expected) <= step * ours.socket.calls
    for sock in socks:
        sock.close()


def test_full_sockets_both_ways_do_not_deadlock(pair):
    """Each side sends far more than the sockets hold and reads only while it cannot send."""

    def exchange(me):
        found = []

        def meanwhile():
            frame = me.receive(DONT_WAIT)
            if frame is not None:
                found.append(frame)
            me.wait(1.0, write=True)

        for call_id in range(5):
            me.send(big(300_000, call_id), meanwhile)
        while len(found) < 5:
            found.append(me.receive())
        return [(frame.call_id, len(content(frame))) for frame in found]

    results = [in_thread(lambda end=end: exchange(end)) for end in pair]
    assert [result() for result in results] == [[(number, 300_000) for number in range(5)]] * 2


def test_receive_returns_none_after_a_tick(pair):
    ours, _ = pair
    ours.tick(0.01)
    assert ours.receive() is None
    assert ours.receive() is None


def test_half_a_frame_outlasts_ticks(pair):
    ours, theirs = pair
    data = b"".join(map(bytes, big(2000)))
    ours.tick(0.01)
    for start in range(0, len(data), 500):
        assert ours.receive() is None
        theirs.send([data[start : start + 500]])
    ours.tick(30.0)
    assert len(content(ours.receive())) == 2000


def test_a_first_frame_has_one_timeout_for_all_its_bytes(pair):
    ours, theirs = pair
    (data,) = frames.pack(frames.PING, 1)
    for byte in data[:4]:
        theirs.send([bytes([byte])])
        assert ours.receive_within(0.02) is None
    theirs.send([data[4:]])
    assert ours.receive_within(30).call_id == 1
    assert ours.receive_within(0.01) is None
    theirs.close()
    with pytest.raises(Ended):
        ours.receive_within(30)


def test_dont_wait(pair):
    ours, theirs = pair
    assert ours.receive(DONT_WAIT) is None
    theirs.send([*frames.pack(frames.PING, 1), *frames.pack(frames.PING, 2), frames.pack(frames.PING, 3)[0][:10]])
    assert [ours.receive(DONT_WAIT).call_id for _ in range(2)] == [1, 2]
    assert ours.receive(DONT_WAIT) is None


def test_many_small_buffers_take_few_receives(pair):
    """They have arrived, and come without a receive for each."""
    ours, theirs = pair
    data = b"".join(map(bytes, frames.encode(frames.CALL, 1, {"a": [memoryview(b"x")] * 300})))
    at = len(data) - 200
    theirs.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
    theirs.send([data[:at]])
    assert ours.receive(DONT_WAIT) is None
    theirs.send([data[at:]])
    assert [bytes(view) for view in ours.receive(DONT_WAIT).buffers] == [b"x"] * 300


def test_the_end_follows_the_last_frame(pair):
    ours, theirs = pair
    theirs.send(frames.pack(frames.PING, 1))
    theirs.close()
    assert ours.receive().call_id == 1
    with pytest.raises(Ended, match="the connection was closed"):
        ours.receive()
    with pytest.raises(Ended, match="Broken pipe"):
        ours.send(big(1_000_000))


def test_an_end_within_a_frame(pair):
    ours, theirs = pair
    theirs.send([frames.pack(frames.PING, 1)[0][:-1]])
    theirs.close()
    with pytest.raises(Ended):
        ours.receive()


def test_the_end_while_sending(pair):
    ours, theirs = pair

    def send():
        with pytest.raises(Ended):
            ours.send(big(1_000_000))
        return "ended"

    outcome = in_thread(send)
    theirs.receive(DONT_WAIT)
    theirs.close()
    assert outcome() == "ended"


def test_use_after_close_is_ended(pair):
    ours, _ = pair
    ours.close()
    with pytest.raises(Ended, match="Bad file descriptor"):
        ours.receive()
    with pytest.raises(Ended, match="Bad file descriptor"):
        ours.send(frames.pack(frames.PING, 1))
    assert ours.wait(1.0) == select.POLLNVAL


def test_an_invalid_frame_is_a_protocol_error(pair):
    ours, theirs = pair
    theirs.send([b"GET / HTTP/1.1\r\nHost: device\r\n\r\n"])
    with pytest.raises(ProtocolError):
        ours.receive()


def test_waiting(pair):
    ours, theirs = pair
    assert ours.wait(0.0) == 0
    assert ours.wait(10.0, write=True) == select.POLLOUT
    theirs.send(frames.pack(frames.PING, 1))
    assert ours.wait(10.0) == select.POLLIN


@pytest.mark.parametrize("count", range(8))
def test_the_rest_of_pieces_after_a_partial_send(count):
    pieces = [b"ab", b"", b"cde", memoryview(b"fg")]
    assert b"".join(map(bytes, streams.rest_of(pieces, count))) == b"abcdefg"[count:]
