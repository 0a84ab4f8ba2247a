"""RPyC: a service with plain methods; arrays are bytes, which RPyC passes by value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import rpyc
from rpyc.utils.server import ThreadedServer

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


def main() -> None:
    server = ThreadedServer(BenchService, hostname="127.0.0.1", port=0, protocol_config=CONFIGURATION)
    server.listener.listen()  # start() listens, too, but later than announce()
    announce(server.port)
    server.start()


if __name__ == "__main__":
    main()
