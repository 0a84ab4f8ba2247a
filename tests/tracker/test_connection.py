"""A connection between a transport and a service that are the test's own: turns, stuck peers, silence, ends."""

import json
import struct

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.tracker import connection as connection_module
from rpcsys.tracker.connection import BURST, HIGH_WATER, MAX_UNSENT, SILENCE_S, Connection
from rpcsys.tracker.service import MAX_TVM_REPLY

MAGIC = struct.pack("<i", 0x2F271)


def raw(value):
    data = json.dumps(value).encode()
    return struct.pack("<i", len(data)) + data


class Transport:
    """Notes what is done to it; with ``blocked``, nothing it is given leaves."""

    def __init__(self):
        self.written = b""
        self.unsent = 0
        self.blocked = False
        self.reading = True
        self.ended = None

    def set_write_buffer_limits(self, high):
        self.high = high

    def write(self, data):
        self.written += data
        if self.blocked:
            self.unsent += len(data)
            if self.unsent > self.high:
                self.connection.pause_writing()

    def get_write_buffer_size(self):
        return self.unsent

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return self.ended is not None

    def close(self):
        self.ended = self.ended or "closed"

    def abort(self):
        self.ended = "aborted"


class Sock:
    def setsockopt(self, *option):
        pass


class Service:
    """Answers every frame with ``reply``; its loop is its own, too."""

    def __init__(self, reply=b"x"):
        self.reply = reply
        self.now = 100.0
        self.strangers = {}
        self.unsent = []
        self.soon = []
        self.frames = []
        self.gone = []
        self.loop = self

    def time(self):
        return self.now

    def call_soon(self, callback):
        self.soon.append(callback)

    def turn(self):
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def greeted(self, connection):
        return 1

    def received(self, connection, frame):
        if frame == b'"bad"':
            raise ProtocolError("a bad frame")
        self.frames.append(frame)
        connection.queue(self.reply)

    def to_flush(self, connection):
        self.unsent.append(connection)

    def flush(self):
        while self.unsent:
            self.unsent.pop().flush()

    def lost(self, connection):
        self.gone.append(connection)


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def connection(service):
    made = Connection(service, Sock(), "::ffff:10.0.0.5", "::1")
    transport = Transport()
    transport.connection = made
    made.connection_made(transport)
    return made


def test_addresses_are_as_people_write_them(connection):
    assert (connection.address, connection.local) == ("10.0.0.5", "::1")


def test_a_stranger_has_no_number_until_the_magic_is_whole(service, connection):
    connection.data_received(MAGIC[:3])
    assert connection.number == 0
    assert connection in service.strangers
    connection.data_received(MAGIC[3:] + raw([1]))
    assert connection.number == 1
    assert service.strangers == {}
    assert service.frames == [b"[1]"]


def test_replies_are_joined(service, connection):
    connection.data_received(MAGIC + raw([1]) * 5)
    assert connection._transport.written == b"xxxxx"


def test_many_frames_are_handled_in_turns_and_reading_rests_meanwhile(service, connection):
    connection.data_received(MAGIC + raw([1]) * (2 * BURST + 10))
    for handled in (BURST, 2 * BURST):
        assert len(service.frames) == handled
        assert not connection._transport.reading
        service.turn()
    assert len(service.frames) == 2 * BURST + 10
    assert connection._transport.reading
    assert service.soon == []


def test_what_comes_between_two_turns_waits_its_turn(service, connection):
    connection.data_received(MAGIC + raw([1]) * (BURST + 1))
    connection.data_received(raw([2]))
    assert len(service.frames) == BURST
    service.turn()
    assert service.frames[-2:] == [b"[1]", b"[2]"]


def test_who_does_not_read_is_not_read(service, connection):
    transport = connection._transport
    transport.blocked = True
    service.reply = b"x" * (HIGH_WATER // 4)
    connection.data_received(MAGIC + raw([1]) * 100)
    handled = len(service.frames)
    assert handled < 10
    assert not transport.reading
    assert transport.unsent < 2 * HIGH_WATER
    service.turn()
    assert len(service.frames) == handled
    transport.blocked, transport.unsent = False, 0
    connection.resume_writing()
    service.turn()
    assert len(service.frames) == 100
    assert transport.reading


def test_getting_stuck_between_two_turns_keeps_reading_at_rest(service, connection):
    connection.data_received(MAGIC + raw([1]) * (BURST + 1))
    connection.pause_writing()
    service.turn()
    assert not connection._transport.reading
    assert len(service.frames) == BURST
    connection.resume_writing()
    service.turn()
    assert connection._transport.reading
    assert len(service.frames) == BURST + 1


def test_who_never_reads_is_dropped(service, connection):
    connection._transport.blocked = True
    connection.data_received(MAGIC)
    while connection._transport.ended is None:
        connection.queue(b"x" * HIGH_WATER)
        connection.flush()
        assert connection._transport.unsent <= MAX_UNSENT + 2 * HIGH_WATER
    assert connection._transport.ended == "aborted"
    assert service.gone == [connection]


@pytest.mark.parametrize("begun", [b"", MAGIC[:2], MAGIC + b"\x05", MAGIC + raw([1])[:-1]])
def test_silence_in_the_middle_of_something(service, connection, begun):
    if begun:
        connection.data_received(begun)
    connection.look(service.now + SILENCE_S)
    assert connection._transport.ended is None
    connection.look(service.now + SILENCE_S + 0.1)
    assert connection._transport.ended == "aborted"


def test_drops_of_a_frame_do_not_buy_time(service, connection):
    connection.data_received(MAGIC)
    for byte in raw([1])[:-1]:
        connection.data_received(bytes([byte]))
        service.now += SILENCE_S / 4
    connection.look(service.now)
    assert connection._transport.ended == "aborted"


def test_silence_between_frames_is_fine(service, connection):
    connection.data_received(MAGIC + raw([1]))
    connection.look(service.now + 1e6)
    assert connection._transport.ended is None


def test_a_bad_frame_ends_the_connection_after_the_replies_before_it(service, connection):
    connection.data_received(MAGIC + raw([1]) + raw("bad") + raw([1]))
    assert connection._transport.written == b"x"
    assert connection._transport.ended == "closed"
    assert len(service.frames) == 1
    assert service.gone == [connection]
    connection.look(service.now + SILENCE_S + 1)  # it does not read its last reply
    assert connection._transport.ended == "aborted"


def test_the_limits_leave_room_for_a_summary():
    assert connection_module.HIGH_WATER < 1 << 20 < MAX_TVM_REPLY < MAX_UNSENT
