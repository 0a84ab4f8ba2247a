"""A service's turns, over socket pairs."""

import asyncio
import errno
import io
import logging
import socket

import pytest

from rpcsys import logs
from rpcsys.tracker import config
from rpcsys.tracker.connection import PeerConnection
from rpcsys.tracker.service import TrackerService
from rpcsys.wire.tracker import MAGIC_BYTES, TrackerFrameReader, decode_json, encode


class Lab:
    """A service and its peers."""

    def __init__(self):
        self.service = TrackerService(config.parse(["--port", "0"]))
        self.records = []
        self.service._note = self.records.append
        self.ends = []

    def join(self):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.ends.append(theirs)
        theirs.send(MAGIC_BYTES)
        return PeerConnection(self.service, ours, "10.0.0.5", "10.0.0.1"), Peer(theirs)

    def close(self):
        self.service.close()
        for end in self.ends:
            end.close()


class Peer:
    def __init__(self, sock):
        self.sock = sock
        self.reader = TrackerFrameReader()

    def say(self, message):
        self.sock.send(encode(message))

    def hear(self):
        """The messages that it has received; None at the end of the stream."""
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        self.reader.feed(data)
        return [decode_json(frame) for frame in iter(self.reader.next, None)]


async def turns():
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def run():
    """Runs a test in a loop, with a lab that is closed after it; returns the log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.setup("rpcsys-test")
    written = root.handlers[0].stream = io.StringIO()

    def run(test):
        async def main():
            lab = Lab()
            try:
                await test(lab)
            finally:
                lab.close()

        asyncio.run(asyncio.wait_for(main(), 30))
        return written.getvalue()

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_request_in_the_turn_of_an_offer_is_granted_at_once(run):
    async def test(lab):
        (_, client), (_, server) = lab.join(), lab.join()
        server.say([3, "rpi4", [9090, "rpi4:0.1"], None])
        client.say([4, "rpi4", "", 1])
        await turns()
        assert client.hear() == [[0, ["10.0.0.5", 9090, "rpi4:0.1"]]]
        assert server.hear() == [0]
        lab.records.clear()
        client.say([4, "rpi4", "", 1])  # before the offer, but in its turn
        server.say([3, "rpi4", [9090, "rpi4:0.2"], None])
        await turns()
        assert client.hear() == [[0, ["10.0.0.5", 9090, "rpi4:0.2"]]]
        assert [record.details["waited_s"] for record in lab.records if record.kind == "granted"] == [0]

    run(test)


def test_a_connection_that_cannot_be_watched_is_closed(run, monkeypatch):
    async def test(lab):
        def no_room(number, callback):
            raise OSError(errno.ENOSPC, "No space left on device")

        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname(), timeout=30)
            ours, address = listener.accept()
        lab.ends.append(theirs)
        monkeypatch.setattr(lab.service.sockets, "add", no_room)
        lab.service.accept(ours, address)
        assert theirs.recv(1) == b""
        assert lab.service.open_connections == {}

    run(test)


def test_an_error_of_the_tracker_costs_one_connection(run, monkeypatch):
    async def test(lab):
        (faulty, one), (_, other) = lab.join(), lab.join()
        await turns()
        assert one.hear() == other.hear() == []  # the magic is all
        received = lab.service.received
        fails = lambda connection, frame: 1 / 0 if connection is faulty else received(connection, frame)  # noqa: E731
        monkeypatch.setattr(lab.service, "received", fails)
        one.say([1])
        other.say([1])
        await turns()
        assert one.hear() is None
        assert other.hear() == [0]

    assert "ZeroDivisionError" in run(test)
