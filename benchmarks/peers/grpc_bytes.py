"""gRPC-Python with generic handlers: bytes in, bytes out, no generated code, message limits lifted."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from benchmarks.peers.subject import Subject, Trial, announce, serve_until_told

SERVICE = "bench"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


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
        own = [
            *OPTIONS,
            ("grpc.use_local_subchannel_pool", 1),
        ]  # otherwise a second channel shares the first one's connection
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=own)


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


def main() -> None:
    handlers = {f.__name__: grpc.unary_unary_rpc_method_handler(f) for f in (sink, source)}
    server = grpc.server(ThreadPoolExecutor(1), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    announce(port)
    serve_until_told()


if __name__ == "__main__":
    main()
