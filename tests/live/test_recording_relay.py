"""The relay of tests tells one end what happens to the other."""

from __future__ import annotations

import socket
import struct

from tests.live.recording_relay import recording


def test_a_reset_of_the_server_ends_the_clients_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, recording(server.getsockname()[:2]) as relay:
        with socket.create_connection(relay.address, timeout=20) as client:
            far = server.accept()[0]
            client.sendall(b"question")
            assert far.recv(8) == b"question"
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            far.close()  # sends a reset
            assert client.recv(1) == b""
