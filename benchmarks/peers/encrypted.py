"""Encrypted sessions, and the encryption alone: what TLS costs beside the session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rpcsys
from benchmarks.peers.memory import octets
from benchmarks.peers.ours import SERVER, Rpcsys
from benchmarks.peers.subject import Subject, Trial
from rpcsys.link import identity, standing_key, tls


class EncryptedRpcsys(Rpcsys):
    """Our server with a standing key."""

    def start(self) -> None:
        path = str(self.place.folder / "bench.key")
        self.port = self.start_server((*SERVER, "--standing-key", path))
        self._key = standing_key.match_key(path)

    def _connect(self) -> Any:
        return rpcsys.connect("127.0.0.1", self.port, key=self._key)


class EncryptionAlone(Subject):
    """Bytes encrypted and decrypted in this process's memory, by OpenSSL's own steps."""

    @contextmanager
    def encrypt_and_decrypt(self, size: int) -> Iterator[Trial]:
        own = identity.new()
        client = tls.Tunnel(tls.client_context(), server=False, pins=(own.pin,))
        server = tls.Tunnel(tls.server_context(own), server=True)
        while not (client.handshake() and server.open):
            server.feed(client.outgoing())
            server.handshake()
            client.feed(server.outgoing())
        data, place = octets(size), octets(size)

        def run() -> None:
            for start in range(0, size, tls.STRETCH):
                client.write([data[start : start + tls.STRETCH]])
                server.feed(client.outgoing())
                server.read_into(place[start : start + tls.STRETCH])

        yield Trial(run)
