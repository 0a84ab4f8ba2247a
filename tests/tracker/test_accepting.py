"""How connections are accepted, by a service of the test's own."""

import socket

import pytest

from rpcsys.link.admission import Admission
from rpcsys.tracker import accepting
from rpcsys.tracker.connection import MAX_REFUSED
from rpcsys.wire.control import Hello
from rpcsys.wire.tracker import Ping, encode
from tests.tracker.test_connection import Peer, TrackerService


@pytest.fixture
def service():
    made = TrackerService()
    made.served = Admission()
    made.admit = lambda address, local: made.room
    made.room = True
    return made


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as theirs:
        theirs.connect(listener.getsockname())
        ours, address = listener.accept()
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs, address
        ours.close()


def test_a_connection_has_a_place(service, ends):
    ours, _theirs, address = ends
    accepting.accept(service, ours, ("::ffff:" + address[0], address[1]))
    (connection,) = service.open_connections
    assert (connection.address, connection.local, connection.refusal) == ("127.0.0.1", "127.0.0.1", "")
    connection.drop("the test ends")
    assert service.left == [("127.0.0.1", "127.0.0.1")]


def test_one_too_many_is_closed(service, ends):
    ours, _theirs, address = ends
    service.room = False
    accepting.accept(service, ours, address)
    assert ours.fileno() == -1
    assert not service.open_connections
    assert not service.left


def test_one_that_the_kernel_does_not_watch_is_closed_and_not_counted(service, ends):
    ours, _theirs, _address = ends

    def add(number, callback):
        raise OSError

    service.sockets.add = add
    assert accepting.admit(service, ours, ("10.0.0.5", "10.0.0.1")) is None
    assert ours.fileno() == -1
    assert service.left == [("10.0.0.5", "10.0.0.1")]


def test_one_that_has_ended_already_is_closed(service):
    class Ended(socket.socket):
        def getsockname(self):
            raise OSError

    sock = Ended()
    accepting.accept(service, sock, ("10.0.0.5", 1))
    assert sock.fileno() == -1


def test_a_refusal_is_said_as_the_peers_protocol_has_it(service, ends):
    ours, theirs, _ = ends
    connection = accepting.admit(service, ours, ("203.0.113.5", "10.0.0.1"))
    assert "--admit 203.0.113.5" in connection.refusal
    peer = Peer(service, theirs)
    accepting.refuse(connection, None, "Forbidden", "no")
    accepting.refuse(connection, Ping(Hello("0", ())), "Forbidden", "no")
    service.flush()
    refused = {"ok": False, "error": "Forbidden", "message": "no"}
    assert peer.hear() == encode([-1, "no"]) + encode(refused)
    for _ in range(MAX_REFUSED - 2):
        accepting.refuse(connection, None, "Forbidden", "no")
    assert peer.ended
    assert service.gone == [connection]
