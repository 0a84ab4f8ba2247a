"""RPyC: a service with plain methods; arrays are bytes, which RPyC passes by value."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import rpyc
from rpyc.utils.authenticators import SSLAuthenticator
from rpyc.utils.server import ThreadedServer

from benchmarks.peers import certificates
from benchmarks.peers.subject import Subject, Trial, announce

CONFIGURATION = {"sync_request_timeout": None}


class BenchService(rpyc.Service):
    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[int, bytes] = {}

    def exposed_sink(self, data: bytes) -> None:
        """Receive bytes and drop them."""

    def exposed_source(self, size: int) -> bytes:
        if size not in self._sources:
            self._sources[size] = bytes(size)
        return self._sources[size]


class RpycService(Subject):
    server_arguments = ("-m", "benchmarks.peers.rpyc_service")

    @contextmanager
    def null_call(self) -> Iterator[Trial]:
        with self._connect() as connection:
            sink = connection.root.sink
            yield Trial(lambda: sink(b""))

    @contextmanager
    def to_device(self, size: int) -> Iterator[Trial]:
        with self._connect() as connection:
            sink, data = connection.root.sink, bytes(size)
            yield Trial(lambda: sink(data))

    @contextmanager
    def from_device(self, size: int) -> Iterator[Trial]:
        with self._connect() as connection:
            source = connection.root.source
            assert len(source(size)) == size
            yield Trial(lambda: source(size))

    @contextmanager
    def session(self) -> Iterator[Trial]:
        """A connection and the first call on it."""
        opened: list[rpyc.Connection] = []

        def run() -> None:
            connection = self._connect()
            connection.root.sink(b"")
            opened.append(connection)

        yield Trial(run, after=lambda: opened.pop().close())

    def _connect(self) -> rpyc.Connection:
        return rpyc.connect("127.0.0.1", self.port, config=CONFIGURATION)


class EncryptedRpyc(RpycService):
    """The same over TLS."""

    def start(self) -> None:
        self._certificate = certificates.made(self.place.folder)
        self.port = self.start_server((*self.server_arguments, str(self._certificate)))

    def _connect(self) -> rpyc.Connection:
        return rpyc.ssl_connect("127.0.0.1", self.port, ca_certs=str(self._certificate), config=CONFIGURATION)


def main(certificate: str | None = None) -> None:
    """``certificate``: the file of certificate and key, to serve over TLS."""
    tls = None if certificate is None else SSLAuthenticator(certificate, certificate)
    options = {"protocol_config": CONFIGURATION, "authenticator": tls}
    server = ThreadedServer(BenchService, hostname="127.0.0.1", port=0, **options)
    server.listener.listen()  # start() listens, too, but later than announce()
    announce(server.port)
    server.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
