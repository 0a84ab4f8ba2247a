"""Frames that a session receives: sorted, cancelled before they begin, and limited in number and size."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.server.session.incoming import MAX_CHUNK_BYTES, WINDOW_CALLS, WINDOWS, Incoming
from rpcsys.server.session.outgoing import STRETCH, Outgoing
from rpcsys.stream import DONT_WAIT, Ended
from rpcsys.wire import frames
from tests import secured
from tests.device import until

MB = 1 << 20
WINDOW_BYTES = 32 * MB


@pytest.fixture
def ends(speedups):
    stream, peer = secured.open_both(socket.socketpair())
    out = Outgoing(stream)
    peer.tick(20)
    yield Incoming(stream, out, WINDOW_BYTES), out, peer
    for end in (stream, peer):  # a thread may still send
        end.close()


def joined(*pieces):
    return b"".join(b"".join(map(bytes, piece)) for piece in pieces)


def a_call(call_id, **fields):
    return frames.encode(frames.CALL, call_id, {"f": "x", "a": [], **fields})


def numbers(incoming, count):
    return [incoming.next().call_id for _ in range(count)]


def test_frames_of_one_read_keep_their_order(ends):
    incoming, _, peer = ends
    peer.send([joined(a_call(1), frames.pack(frames.FREE, 2), a_call(3))])
    assert numbers(incoming, 3) == [1, 2, 3]


def test_a_call_cancelled_in_the_same_read_does_not_begin(ends):
    incoming, _, peer = ends
    peer.send([joined(a_call(1), a_call(2), frames.pack(frames.CANCEL, 1), a_call(3))])
    assert numbers(incoming, 2) == [2, 3]
    frame = peer.receive()
    assert (frame.kind, frame.call_id, frame.get("type")) == (frames.ERROR, 1, "Cancelled")


def test_a_call_cancelled_after_the_read_and_before_it_begins_is_withdrawn(ends):
    incoming, _, peer = ends
    peer.send([joined(a_call(1), a_call(2), a_call(3))])
    assert numbers(incoming, 1) == [1]
    second = incoming.next()
    assert incoming.late
    assert not incoming.withdrawn(second)
    peer.send([joined(frames.pack(frames.CANCEL, 2))])
    assert incoming.withdrawn(second)
    frame = peer.receive()
    assert (frame.kind, frame.call_id, frame.get("type")) == (frames.ERROR, 2, "Cancelled")
    assert numbers(incoming, 1) == [3]
    assert not incoming.waiting


def test_a_large_call_can_be_cancelled_while_it_arrives(ends):
    incoming, _, peer = ends
    large = threading.Thread(target=peer.send, args=(a_call(1, a=[b"x" * 2 * MB]),))
    large.start()
    call = incoming.next()
    large.join()
    peer.send([joined(frames.pack(frames.CANCEL, 1))])
    assert incoming.late
    assert incoming.withdrawn(call)
    peer.send([joined(a_call(2))])
    assert numbers(incoming, 1) == [2]
    assert not incoming.late


def test_a_ping_waits_for_no_call(ends):
    incoming, _, peer = ends
    peer.send([joined(a_call(1), frames.pack(frames.PING, 9))])
    assert incoming.next().call_id == 1
    assert peer.receive().kind == frames.PONG


def test_a_goodbye_drops_waiting_calls(ends):
    incoming, _, peer = ends
    peer.send([joined(a_call(1), a_call(2), frames.pack(frames.GOODBYE, 0))])
    assert incoming.next().kind == frames.GOODBYE


def flood(peer, one, count):
    """Send ``one`` ``count`` times, or until the other end is closed."""

    def send():
        with contextlib.suppress(Ended):
            peer.send([one * count])

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.parametrize("beside", [(), (frames.FREE, frames.CANCEL)])
def test_a_client_within_its_window_is_always_read(ends, beside):
    """This holds for two windows of calls: a client may send a new call for each one that it has cancelled."""
    incoming, _, peer = ends
    peer.socket.setblocking(True)
    one = joined(a_call(1), *(frames.pack(kind, 2) for kind in beside))
    flood(peer, one, WINDOWS * WINDOW_CALLS if not beside else WINDOW_CALLS)
    calls = WINDOWS * WINDOW_CALLS if not beside else WINDOW_CALLS
    until(lambda: incoming.read_ahead() or sum(f.kind == frames.CALL for f in incoming.waiting) == calls)
    assert incoming.has_room()


def test_more_calls_than_the_window_are_an_error(ends):
    incoming, _, peer = ends
    flood(peer, joined(a_call(1)), 4 * WINDOW_CALLS)
    with pytest.raises(ProtocolError, match="more calls were sent than may be under way: 256"):
        until(incoming.read_ahead)
    assert len(incoming.waiting) == WINDOWS * WINDOW_CALLS


def test_more_bytes_than_the_window_are_an_error(ends):
    incoming, _, peer = ends
    flood(peer, joined(a_call(1, a=[b"x" * MB])), 100)
    with pytest.raises(ProtocolError, match="more calls were sent"):
        until(incoming.read_ahead)
    assert sum(frame.parsed.weight for frame in incoming.waiting) < WINDOWS * WINDOW_BYTES + MB


def test_one_call_may_be_larger_than_the_window(ends):
    incoming, _, peer = ends
    flood(peer, joined(a_call(1, a=[bytes(WINDOWS * WINDOW_BYTES + MB)])), 1)
    until(lambda: incoming.read_ahead() or incoming.waiting)
    assert numbers(incoming, 1) == [1]


def test_reading_ahead_is_limited_by_memory(ends):
    """Long heads take more memory than they have bytes: further ones wait in the socket."""
    incoming, _, peer = ends
    one = joined(a_call(1, text=["x" * 1000] * 500))
    flood(peer, one, 100)
    until(lambda: incoming.read_ahead() or not incoming.has_room())
    assert sum(frame.parsed.weight for frame in incoming.waiting) < WINDOW_BYTES + 24 * MB
    assert len(incoming.waiting) < 100
    assert numbers(incoming, 100) == [1] * 100
    assert incoming.has_room()


def test_reading_an_upload_ahead_is_limited(ends):
    incoming, _, peer = ends
    piece = frames.pack(frames.CHUNK, 1, b"", (bytes(MB),))
    client = threading.Thread(target=lambda: [peer.send(piece) for _ in range(20)], daemon=True)
    client.start()
    until(lambda: incoming.read_ahead() or not incoming.has_room())
    held = sum(len(frame.buffers[0]) for frame in incoming.waiting)
    assert MAX_CHUNK_BYTES <= held <= MAX_CHUNK_BYTES + MB
    assert numbers(incoming, 20) == [1] * 20
    assert incoming.has_room()


def test_two_full_buffers_do_not_deadlock(ends):
    """Not even if the client reads only after it has sent everything."""
    incoming, out, peer = ends
    calls = joined(*[a_call(number, pad="x" * 3000) for number in range(1, 201)])
    got = []
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(16))

    def client():
        peer.send([calls])
        got.append(peer.receive())

    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    out.send(frames.pack(frames.CHUNK, 1, b"", (bytes(4 * MB),)))
    thread.join(20)
    assert len(got[0].buffers[0]) == 4 * MB
    assert numbers(incoming, 200) == list(range(1, 201))


def test_frames_that_arrive_during_a_long_reply_are_read_before_its_end(ends):
    """Also while the client receives all of it as fast as it is sent."""
    incoming, out, peer = ends
    read, replies = [], []

    def noting():
        on_full()
        read.append(bool(incoming.unsorted))

    on_full, out.on_full = out.on_full, noting
    thread = threading.Thread(target=lambda: replies.append(peer.receive()), daemon=True)
    thread.start()
    peer.send([joined(a_call(1), a_call(2))])
    parts = [b"first", bytes(STRETCH), b"", bytes(2 * STRETCH - 5)]
    out.send(frames.encode(frames.RESULT, 7, {"r": parts}))
    thread.join(20)
    assert replies[0].get("r") == parts
    assert read.index(True) < len(read) - 1
    assert numbers(incoming, 2) == [1, 2]


def test_held_replies_are_sent_when_no_frame_waits(ends):
    incoming, out, peer = ends
    out.hold(frames.pack(frames.RESULT, 1))
    assert peer.receive(DONT_WAIT) is None
    peer.send(a_call(2))
    assert incoming.next().call_id == 2
    assert peer.receive().call_id == 1
