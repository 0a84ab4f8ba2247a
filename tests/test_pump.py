"""Two pumps, joined by frames without a session between them."""

import collections
import os
import random
import socket
import threading

import pytest

from rpcsys.byte_streams import ByteStream, Listener, listening, pipe_for
from rpcsys.errors import ProtocolError
from rpcsys.pump import Connecting, Pump, only_close
from rpcsys.stream import Ended
from rpcsys.wire import frames
from rpcsys.wire.byte_streams import CLOSE, DATA, EOF, EXIT, MORE, OPEN, STOP, WINDOW, StreamMessage
from rpcsys.wire.reader import FrameReader
from tests.device import until

ID = 7


class Ends:
    """A pump, and the peer's messages to it."""

    def __init__(self):
        self.sent = []
        self.over = False
        self.pump = Pump(self._send)

    def _send(self, id, fields, buffers):
        if self.over:
            raise Ended("the session is over")
        self.sent.append((fields, b"".join(buffers)))

    def take(self, op, stream=0, amount=0, data=b"", id=ID):
        return self.pump.take(frame(id, StreamMessage(op, stream, amount).fields(), data))

    def data(self):
        return sum(len(data) for _, data in list(self.sent))


def frame(id, fields, data=b""):
    head, _ = frames.encode_head(fields)
    (found,) = FrameReader().feed(b"".join(map(bytes, frames.pack(frames.CHUNK, id, head, (data,)))))
    return found


@pytest.fixture
def end():
    made = Ends()
    yield made
    made.pump.close()


@pytest.fixture
def joined():
    """Two pumps, each of which sends to the other."""
    pumps = []
    for other in (1, 0):
        pumps.append(
            Pump(lambda owner, fields, buffers, other=other: pumps[other].take(frame(owner, fields, b"".join(buffers))))
        )
    yield pumps
    for pump in pumps:
        pump.close()


def source():
    """A stream that sends, and the end of its pipe to write to."""
    ours, theirs = pipe_for(reads=True)
    return ByteStream(ID, 0, source=ours), theirs


def target():
    ours, theirs = pipe_for(reads=False)
    return ByteStream(ID, 0, target=ours), theirs


def test_all_bytes_come_in_order_and_then_the_end(joined):
    (sends, writing), (receives, reading) = source(), target()
    joined[0].register(ID, only_close, sends)
    joined[1].register(ID, only_close, receives)
    data = random.Random(1).randbytes(20 * WINDOW)
    writer = threading.Thread(target=lambda: (os.write(writing, data), os.close(writing)))
    writer.start()
    with open(reading, "rb") as file:
        assert file.read() == data
    writer.join()


def test_a_sender_stops_at_its_window_and_goes_on_when_granted(end):
    stream, writing = source()
    end.pump.register(ID, only_close, stream)
    threading.Thread(target=lambda: os.write(writing, bytes(3 * WINDOW)), daemon=True).start()
    until(lambda: end.data() == WINDOW)
    end.take(MORE, amount=1000)
    until(lambda: end.data() == WINDOW + 1000)


def test_a_receiver_keeps_a_window_and_refuses_more(end):
    stream, reading = target()
    end.pump.register(ID, only_close, stream)
    end.take(DATA, data=bytes(WINDOW))
    until(lambda: not stream.backlog or end.sent)
    with pytest.raises(ProtocolError, match="bytes on a stream"):
        collections.deque((end.take(DATA, data=bytes(WINDOW)) for _ in range(4)), 0)
    os.close(reading)


def test_what_was_written_is_granted_again(end):
    stream, reading = target()
    end.pump.register(ID, only_close, stream)
    end.take(DATA, data=bytes(WINDOW))
    with open(reading, "rb") as file:
        assert len(file.read(WINDOW)) == WINDOW
    until(lambda: any(fields.get("op") == MORE for fields, _ in end.sent))
    until(lambda: not stream.backlog)


@pytest.mark.parametrize(
    ("op", "stream", "amount", "why"),
    [
        (DATA, 0, 0, "takes 0"),
        (OPEN, 0, 0, "open already"),
        (EXIT, -1, 3, "takes no message"),
        (MORE, 0, 1 << 40, "terabyte"),
    ],
)
def test_what_breaks_the_protocol_is_refused(end, op, stream, amount, why):
    held, _ = target()
    end.pump.register(ID, only_close, held)
    if op == DATA:
        end.take(EOF)
    with pytest.raises(ProtocolError, match=why):
        end.take(op, stream, amount, b"x" if op == DATA else b"")


def test_what_belongs_to_nothing_is_left_to_others_or_dropped(end):
    assert not end.take(DATA, data=b"x")
    end.pump.register(ID, only_close)
    assert end.take(DATA, stream=3, data=b"late")
    assert end.take(CLOSE, stream=-1)
    until(lambda: end.pump.idle)


def test_a_reader_that_is_gone_stops_the_sender(joined):
    (sends, writing), (receives, reading) = source(), target()
    joined[0].register(ID, only_close, sends)
    joined[1].register(ID, only_close, receives)
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        collections.deque(iter(lambda: os.write(writing, bytes(WINDOW)), 0), 0)
    os.close(writing)


def test_connections_are_accepted_and_made_at_the_other_end(joined):
    with listening(0) as there:
        there.setblocking(True)
        here = listening(0)
        address = here.getsockname()
        joined[0].register(ID, only_close)
        joined[1].register(ID, Connecting(joined[1], ID, there.getsockname()[1]))
        joined[0].listen(Listener(ID, here))
        with socket.create_connection(address) as desk:
            board, _ = there.accept()
            with board:
                desk.sendall(b"to the board")
                desk.shutdown(socket.SHUT_WR)
                assert board.makefile("rb").read() == b"to the board"
                board.sendall(b"to the desk")
            assert desk.makefile("rb").read() == b"to the desk"
        joined[0].release(ID)
        until(lambda: socket.socket().connect_ex(address))


def test_a_connection_that_is_refused_ends_with_its_reason(end):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens at it
        end.pump.register(ID, Connecting(end.pump, ID, taken.getsockname()[1]))
        end.take(OPEN, 1)
        until(lambda: len(end.sent) == 2)
    # A desk that closes the forward at the connection's end has the reason already.
    assert [fields for fields, _ in end.sent] == [
        {"op": EOF, "s": 1, "why": "Connection refused"},
        {"op": STOP, "s": 1},
    ]


def test_the_end_of_the_session_closes_all(end):
    (sends, writing), (receives, reading) = source(), target()
    receives.key = (ID, 1)
    end.pump.register(ID, only_close, sends, receives)
    end.over = True
    os.write(writing, b"x")
    assert os.read(reading, 1) == b""
    with pytest.raises(BrokenPipeError):
        until(lambda: os.write(writing, b"x") and False)
    os.close(writing)
    os.close(reading)
