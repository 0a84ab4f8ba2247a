"""gRPC-Python with generic handlers: bytes in, bytes out, no generated code, message limits lifted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from benchmarks.peers import certificates
from benchmarks.peers.subject import Subject, Trial, announce, serve_until_told

SERVICE = "bench"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
#: Otherwise a second channel shares the first one's connection.
OWN_CONNECTION = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]


class GrpcBytes(Subject):
    server_arguments = ("-m", "benchmarks.peers.grpc_bytes")

    @contextmanager
    def null_call(self) -> Iterator[Trial]:
        with self._channel() as channel:
            call = method(channel, "sink")
            yield Trial(lambda: call(b""))

    @contextmanager
    def to_device(self, size: int) -> Iterator[Trial]:
        with self._channel() as channel:
            call, data = method(channel, "sink"), bytes(size)
            yield Trial(lambda: call(data))

    @contextmanager
    def from_device(self, size: int) -> Iterator[Trial]:
        with self._channel() as channel:
            call, wanted = method(channel, "source"), size.to_bytes(8, "little")
            assert len(call(wanted)) == size
            yield Trial(lambda: call(wanted))

    @contextmanager
    def session(self) -> Iterator[Trial]:
        """A channel and the first call on it."""
        opened: list[grpc.Channel] = []

        def run() -> None:
            channel = self._channel()
            method(channel, "sink")(b"")
            opened.append(channel)

        yield Trial(run, after=lambda: opened.pop().close())

    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=OWN_CONNECTION)


class EncryptedGrpc(GrpcBytes):
    """The same over TLS."""

    def start(self) -> None:
        certificate = certificates.made(self.place.folder)
        self._credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        self.port = self.start_server((*self.server_arguments, str(certificate)))

    def _channel(self) -> grpc.Channel:
        options = [*OWN_CONNECTION, ("grpc.ssl_target_name_override", certificates.NAME)]
        return grpc.secure_channel(f"127.0.0.1:{self.port}", self._credentials, options=options)


def method(channel: grpc.Channel, name: str) -> grpc.UnaryUnaryMultiCallable:
    return channel.unary_unary(f"/{SERVICE}/{name}")


def sink(request: bytes, context: grpc.ServicerContext) -> bytes:
    return b""


_sources: dict[bytes, bytes] = {}


def source(request: bytes, context: grpc.ServicerContext) -> bytes:
    """As many bytes as the request says, a little-endian number."""
    if request not in _sources:
        _sources[request] = bytes(int.from_bytes(request, "little"))
    return _sources[request]


def main(certificate: str | None = None) -> None:
    """``certificate``: the file of certificate and key, to serve over TLS."""
    handlers = {f.__name__: grpc.unary_unary_rpc_method_handler(f) for f in (sink, source)}
    server = grpc.server(ThreadPoolExecutor(1), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    if certificate is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        both = Path(certificate).read_bytes()
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(both, both)]))
    server.start()
    announce(port)
    serve_until_told()


if __name__ == "__main__":
    main(*sys.argv[1:])
