"""A program with a pump, without a session."""

import os

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.pump import Pump
from rpcsys.server.session.exec_program import BoardProgram
from rpcsys.wire.byte_streams import CLOSE, OPEN, RESIZE, SIGNAL, StreamMessage
from tests.device import until
from tests.test_pump import frame

ID = 7


class Client:
    def __init__(self):
        self.sent = []
        self.pump = Pump(lambda _, fields, buffers: self.sent.append((fields, b"".join(buffers))))

    def tell(self, message, data=b""):
        assert self.pump.take(frame(ID, message.fields(), data))

    def output(self, stream=1):
        return b"".join(data for fields, data in list(self.sent) if fields.get("s") == stream)

    def status(self):
        return next((fields["amount"] for fields, _ in list(self.sent) if fields.get("op") == "exit"), None)


@pytest.fixture
def client():
    made = Client()
    yield made
    made.pump.close()


def test_its_group_gets_signals_until_it_has_ended(client, tmp_path):
    program = BoardProgram(
        client.pump, ID, ["sh", "-c", "echo ready; sleep 600"], str(tmp_path), dict(os.environ), None
    )
    until(lambda: client.output() == b"ready\n")
    assert program.running
    client.tell(StreamMessage(SIGNAL, amount=15))
    until(lambda: client.status() is not None)
    assert client.status() == -15
    assert not program.running
    client.tell(StreamMessage(SIGNAL, amount=15))
    client.tell(StreamMessage(SIGNAL, amount=64))


def test_its_terminal_has_a_size_and_ends_with_it(client, tmp_path):
    script = "stty size; read x; stty size; sleep 600 & exit 3"
    BoardProgram(client.pump, ID, ["sh", "-c", script], str(tmp_path), dict(os.environ), (30, 90))
    until(lambda: b"30 90" in client.output(0))
    client.tell(StreamMessage(RESIZE, rows=41, columns=99))
    client.tell(StreamMessage("data", 0), b"\n")
    until(lambda: ({"op": "eof", "s": 0}, b"") in client.sent)
    assert b"41 99" in client.output(0)
    until(lambda: client.status() is not None)
    assert client.status() == 3


def test_it_is_killed_when_its_streams_are_closed(client, tmp_path):
    script = "trap '' TERM; echo ready; while :; do sleep 1; done"
    program = BoardProgram(client.pump, ID, ["sh", "-c", script], str(tmp_path), dict(os.environ), None)
    until(lambda: client.output() == b"ready\n")
    client.tell(StreamMessage(CLOSE))
    until(lambda: not program.running)
    assert client.pump.idle


def test_a_message_that_is_not_its_own_is_refused(client, tmp_path):
    BoardProgram(client.pump, ID, ["cat"], str(tmp_path), dict(os.environ), None)
    with pytest.raises(ProtocolError, match="takes no message"):
        client.tell(StreamMessage(OPEN, 5))
    client.tell(StreamMessage(CLOSE))
