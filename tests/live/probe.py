"""Raw connections: a test sends messages that no client would send.

Written from the protocol's description, without ``rpcsys.wire``: a fault of that package cannot hide here.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
from typing import Any

from tests.scripted_peers import exactly

TRACKER_MAGIC = 0x2F271
SESSION_MAGIC = 0xFF271
MISMATCH = 0xFF273
PUT, REQUEST, UPDATE_INFO, SUMMARY = 3, 4, 5, 6
TIMEOUT_S = 30.0
#: The tokens of keepers, by the ports of their labs' trackers.
KEEPERS: dict[int, str] = {}


class Probe:
    """A socket with exact reads. ``socket`` may be used directly; ``host``: its own address."""

    def __init__(self, address: tuple[str, int], timeout_s: float = TIMEOUT_S, host: str = "") -> None:
        self.socket = socket.create_connection(address, timeout=timeout_s, source_address=(host, 0) if host else None)

    def read(self, count: int) -> bytes:
        """Exactly ``count`` bytes; EOFError when the peer has closed."""
        return exactly(self.socket, count)

    def read_int(self) -> int:
        return struct.unpack("<i", self.read(4))[0]

    def ended(self) -> bool:
        """Whether the peer closes within the socket's timeout."""
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class TrackerProbe(Probe):
    """A connection to a tracker, after the magic numbers."""

    def __init__(self, address: tuple[str, int], timeout_s: float = TIMEOUT_S, host: str = "") -> None:
        super().__init__(address, timeout_s, host)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(struct.pack("<i", TRACKER_MAGIC))
        assert self.read_int() == TRACKER_MAGIC

    def send(self, frame: list[Any] | dict[str, Any]) -> None:
        data = json.dumps(frame).encode()
        self.socket.sendall(struct.pack("<i", len(data)) + data)

    def receive(self) -> Any:
        return json.loads(self.read(self.read_int()))

    def ask(self, frame: list[Any] | dict[str, Any]) -> Any:
        self.send(frame)
        return self.receive()

    def summary(self) -> dict:
        status, summary = self.ask([SUMMARY])
        assert status == 0
        return summary

    def lease(self, key: str) -> tuple[str, int, str]:
        """Lease a device with TVM's request: its host, port and match key."""
        status, place = self.ask([REQUEST, key, "", 1])
        assert status == 0
        return place[0], place[1], place[2]


def context() -> ssl.SSLContext:
    """Of a peer that does not ask whom it speaks to."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


class LabProbe(TrackerProbe):
    """A connection to a lab's tracker inside TLS, after the magic."""

    def __init__(self, address: tuple[str, int], timeout_s: float = TIMEOUT_S, before: bytes = b"") -> None:
        sock = socket.create_connection(address, timeout=timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if before:
            sock.sendall(before)
            assert sock.recv(4) == struct.pack("<i", TRACKER_MAGIC)
        self.socket = context().wrap_socket(sock)
        self.socket.sendall(struct.pack("<i", TRACKER_MAGIC))
        assert self.read_int() == TRACKER_MAGIC

    def hello(self, token: str | None = None, **more: Any) -> dict[str, Any]:
        """The answer to a hello."""
        fields = {"op": "hello", "version": "0", "user": "somebody", **more}
        return self.ask([1, fields if token is None else {**fields, "token": token}])


def asker(address: tuple[str, int], timeout_s: float = TIMEOUT_S) -> TrackerProbe:
    """A connection to a tracker that may ask everything: that of a keeper, where it has a lab."""
    token = KEEPERS.get(address[1])
    if token is None:
        return TrackerProbe(address, timeout_s)
    probe = LabProbe(address, timeout_s)
    probe.hello(token)
    return probe


class SessionProbe(Probe):
    """A connection to a device server, after the handshake. ``key`` is the server's."""

    def __init__(
        self, address: tuple[str, int], matchkey: str, options: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__(address, timeout_s)
        self.socket.sendall(opening(matchkey, options))
        self.code = self.read_int()
        self.key = self.read(self.read_int()).decode() if self.code == SESSION_MAGIC else ""


def opening(matchkey: str, options: str = "") -> bytes:
    """The first bytes of a client's handshake."""
    key = f"client:{matchkey} {options}".rstrip().encode()
    return struct.pack("<ii", SESSION_MAGIC, len(key)) + key


class SealedProbe(SessionProbe):
    """An encrypted opening: the ``public`` name in the clear, then inside TLS the match key ``said``.

    ``code`` is the answer inside, or in the clear where there is no other. The certificate is not looked at.
    """

    def __init__(
        self, address: tuple[str, int], public: str, said: str, options: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__(address, public, options, timeout_s)
        if self.code != SESSION_MAGIC:
            return
        self.socket = context().wrap_socket(self.socket)
        self.socket.sendall(opening(said, options))
        self.code = self.read_int()
        self.key = self.read(self.read_int()).decode() if self.code == SESSION_MAGIC else ""
