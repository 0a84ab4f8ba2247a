"""A connection over a real socket, with a service of the test's own: turns, peers that do not read, silence, ends."""

import json
import select
import socket
import struct
import sys

import pytest

from rpcsys.daemon.sockets import READ
from rpcsys.errors import ProtocolError
from rpcsys.link.admission import plain
from rpcsys.tracker import connection as connection_module
from rpcsys.tracker.connection import BURST, HIGH_WATER, MAX_TVM_REPLY, MAX_UNSENT, SILENCE_S, PeerConnection
from rpcsys.tracker.views.metrics import FrameCounts

MAGIC = struct.pack("<i", 0x2F271)


def raw(value):
    data = json.dumps(value).encode()
    return struct.pack("<i", len(data)) + data


class Sockets:
    """Watched sockets; `look` calls each callback once and then ``after``, as a turn of the loop does."""

    def __init__(self, after):
        self.after = after
        self.watched = {}

    def add(self, number, callback):
        self.watched[number] = [callback, READ]

    def expect(self, number, wanted):
        self.watched[number][1] = wanted

    def remove(self, number):
        del self.watched[number]

    def look(self):
        poll = select.poll()
        for number, (_, wanted) in self.watched.items():
            poll.register(number, wanted)
        for number, found in poll.poll(0):
            self.watched[number][0](found)
        self.after()


class TrackerService:
    """Answers every frame with ``reply``; it is its own loop, too."""

    def __init__(self, reply=b"x"):
        self.reply = reply
        self.now = 100.0
        self.open_connections = {}
        self.counts = FrameCounts(())
        self.sockets = Sockets(self.turn_ends)
        self.read = []
        self.heard = (self.read, self.read)
        self.lab = None
        self.max_frame = 1 << 20
        self.holds = None
        self.unsent = []
        self.soon = []
        self.frames = []
        self.gone = []
        self.left = []
        self.loop = self
        self.admission = self

    def leave(self, address, local):
        self.left.append((address, local))

    def time(self):
        return self.now

    def call_soon(self, callback):
        self.soon.append(callback)

    def turn(self):
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def turn_ends(self):
        while self.read:
            self.read.pop().work()
        self.flush()

    def greeted(self, connection):
        return 1

    def received(self, connection, frame):
        if frame == b'"bad"':
            raise ProtocolError("a bad frame")
        self.frames.append(frame)
        connection.send(self.reply)

    def flush(self):
        while self.unsent:
            self.unsent.pop().flush()

    def lost(self, connection):
        self.gone.append(connection)


class Peer:
    """The other end of the connection."""

    def __init__(self, service, sock):
        self.service = service
        self.sock = sock

    def say(self, data):
        """Send data, and have the service read it."""
        self.sock.sendall(data)
        self.service.sockets.look()

    def hear(self):
        """The data that it has received."""
        heard = b""
        try:
            while piece := self.sock.recv(1 << 20):
                heard += piece
        except BlockingIOError:
            pass
        return heard

    @property
    def ended(self):
        """Whether the connection has ended."""
        self.hear()
        try:
            return self.sock.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


@pytest.fixture
def service():
    return TrackerService()


@pytest.fixture
def ends():
    """Two non-blocking ends of a TCP connection with small buffers."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as theirs:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        theirs.connect(listener.getsockname())
        ours, _ = listener.accept()
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs
        ours.close()


@pytest.fixture
def connection(service, ends):
    return PeerConnection(service, ends[0], "10.0.0.5", "::1")


@pytest.fixture
def peer(service, ends):
    return Peer(service, ends[1])


def wanted(service):
    """Whether any socket is read."""
    return any(bits & READ for _, bits in service.sockets.watched.values())


def test_mapped_ipv4_addresses_are_shortened():
    assert [plain(text) for text in ("::ffff:10.0.0.5", "10.0.0.5", "::1")] == ["10.0.0.5", "10.0.0.5", "::1"]


def test_a_connection_has_no_number_before_the_magic(service, connection, peer):
    peer.say(MAGIC[:3])
    assert connection.number == 0
    peer.say(MAGIC[3:] + raw([1]))
    assert connection.number == 1
    assert service.frames == [b"[1]"]


def test_replies_are_sent_in_one_write(connection, peer):
    peer.say(MAGIC + raw([1]) * 5)
    assert peer.sock.recv(100) == MAGIC + b"xxxxx"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's acknowledgements are asked for on Linux only")
def test_the_rest_of_half_a_frame_is_read_at_once(service, connection, peer):
    """With Nagle's algorithm on, the second half is sent when the first is acknowledged."""
    peer.say(MAGIC)
    looks = 0
    for sent in range(1, 101):  # at first the kernel acknowledges at once by itself
        peer.sock.send(raw([1])[:4])
        peer.sock.send(raw([1])[4:])
        while len(service.frames) < sent:
            service.sockets.look()
            looks += 1
    assert looks < 150, "a busy kernel may take its time now and then"


def test_many_frames_are_handled_in_turns_without_reading_more(service, connection, peer):
    peer.say(MAGIC + raw([1]) * (2 * BURST + 10))
    for handled in (BURST, 2 * BURST):
        assert len(service.frames) == handled
        assert not wanted(service)
        service.turn()
    assert len(service.frames) == 2 * BURST + 10
    assert wanted(service)
    assert service.soon == []


def test_bytes_between_two_turns_are_handled_in_the_next(service, connection, peer):
    peer.say(MAGIC + raw([1]) * (BURST + 1))
    peer.say(raw([2]))
    assert len(service.frames) == BURST
    service.turn()
    service.sockets.look()
    assert service.frames[-2:] == [b"[1]", b"[2]"]


def test_a_peer_that_does_not_read_is_not_read(service, connection, peer):
    service.reply = b"x" * (1 << 20)
    peer.say(MAGIC + raw([1]) * 100)
    handled = len(service.frames)
    assert handled < 20
    assert not wanted(service)
    service.turn()
    assert len(service.frames) == handled
    service.reply = b"x"
    while len(service.frames) < 100:
        peer.hear()
        service.sockets.look()
        service.turn()
    assert wanted(service)


def test_a_peer_that_stops_reading_between_two_turns_is_not_read(service, connection, peer):
    peer.say(MAGIC + raw([1]) * (BURST + 1))
    while not connection.stuck:
        connection.send(b"x" * HIGH_WATER)
        connection.flush()
    service.turn()
    assert not wanted(service)
    assert len(service.frames) == BURST
    while connection.stuck:
        peer.hear()
        service.sockets.look()
    service.turn()
    assert wanted(service)
    assert len(service.frames) == BURST + 1


def test_a_slow_reader_gets_all_bytes_in_order(service, connection, peer):
    pieces = [bytes([number]) * (HIGH_WATER // 2) for number in range(14)]
    for piece in pieces:
        connection.send(piece)
        connection.flush()
    assert connection.stuck
    heard = b""
    while connection.stuck or len(heard) < sum(map(len, pieces)):
        heard += peer.hear()
        service.sockets.look()
    assert heard == b"".join(pieces)


def test_a_peer_with_too_many_unsent_bytes_is_dropped(service, connection, peer):
    peer.say(MAGIC)
    for _ in range(100):
        connection.send(b"x" * HIGH_WATER)
        connection.flush()
    assert service.gone == [connection]
    assert service.sockets.watched == {}
    assert peer.ended


def test_a_peer_that_reads_nothing_for_long_is_dropped(service, connection, peer):
    peer.say(MAGIC)
    while not connection.stuck:
        connection.send(b"x" * HIGH_WATER)
        connection.flush()
    connection.end_if_silent(service.now + SILENCE_S)
    assert service.gone == []
    connection.end_if_silent(service.now + SILENCE_S + 0.1)
    assert service.gone == [connection]


@pytest.mark.parametrize("cut", range(0, 24, 3))
def test_another_connection_goes_on_where_one_was_released(service, connection, peer, cut):
    said = MAGIC + raw([1]) + raw([22]) + raw("end")
    peer.say(said[:cut])
    sock, rest = connection.release()
    assert connection.release() is None
    assert (service.open_connections, service.sockets.watched, service.left) == ({}, {}, [])
    heir = PeerConnection(service, sock, "10.0.0.5", "10.0.0.1")
    heir.resume(rest, bool(connection.number))
    heir.work()
    peer.say(said[cut:])
    assert service.frames == [b"[1]", b"[22]", b'"end"']
    assert peer.hear() == MAGIC + b"xxx"
    heir.drop("the test ends")


def test_a_connection_that_ends_is_not_released(service, connection, peer):
    service.reply = bytes(1 << 21)
    peer.say(MAGIC + raw([1]))
    connection.close()
    assert service.open_connections
    assert connection.release() is None


@pytest.mark.parametrize("begun", [b"", MAGIC[:2], MAGIC + b"\x05", MAGIC + raw([1])[:-1]])
def test_silence_within_a_frame_ends_the_connection(service, connection, peer, begun):
    if begun:
        peer.say(begun)
    connection.end_if_silent(service.now + SILENCE_S)
    assert not peer.ended
    connection.end_if_silent(service.now + SILENCE_S + 0.1)
    assert peer.ended


def test_single_bytes_of_a_frame_do_not_extend_the_time(service, connection, peer):
    peer.say(MAGIC)
    for byte in raw([1])[:-1]:
        peer.say(bytes([byte]))
        service.now += SILENCE_S / 4
    connection.end_if_silent(service.now)
    assert peer.ended


def test_silence_between_frames_is_allowed(service, connection, peer):
    peer.say(MAGIC + raw([1]))
    connection.end_if_silent(service.now + 1e6)
    assert not peer.ended


def test_an_invalid_frame_ends_the_connection_after_earlier_replies(service, connection, peer):
    peer.say(MAGIC + raw([1]) + raw("bad") + raw([1]))
    assert peer.sock.recv(100) == MAGIC + b"x"
    assert peer.ended
    assert len(service.frames) == 1
    assert service.gone == [connection]


def test_a_dropped_peer_gets_earlier_replies_if_it_reads(service, connection, peer):
    service.reply = b"x" * (4 * HIGH_WATER)
    peer.say(MAGIC + raw([1]))
    connection.send(b"y" * 3 * HIGH_WATER)
    connection.drop("a test", politely=True)
    assert service.gone == [connection]
    assert connection in service.open_connections
    assert not wanted(service)
    connection.end_if_silent(service.now + SILENCE_S + 1)
    assert service.sockets.watched == {}
    assert service.open_connections == {}


def test_the_end_of_a_peer_is_reported_once(service, connection, peer):
    peer.say(MAGIC + raw([1]))
    peer.sock.close()
    service.sockets.look()
    assert service.gone == [connection]
    assert service.sockets.watched == {}


def test_the_end_of_a_stream_is_handled_in_its_turn(service, connection, peer, monkeypatch):
    """Earlier frames of other connections are handled before it."""
    peer.say(MAGIC + raw([1]))
    peer.sock.close()
    turn_ends = service.sockets.after
    monkeypatch.setattr(service.sockets, "after", lambda: None)
    service.sockets.look()
    assert service.gone == []
    turn_ends()
    assert service.gone == [connection]


def test_the_limits_allow_a_summary():
    assert connection_module.HIGH_WATER < 1 << 20 < MAX_TVM_REPLY < MAX_UNSENT
