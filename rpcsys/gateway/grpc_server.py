"""gRPC by grpcio, with generic handlers on the gateway's own loop: messages stay bytes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import logging
from collections.abc import AsyncIterator
from typing import Any, NoReturn
from urllib.parse import unquote

from rpcsys.errors import ConfigError, PortRangeError, ProtocolError, one_line
from rpcsys.gateway.calls import InferenceCall
from rpcsys.gateway.config import GRPC_PORT, GRPC_PORT_END, GatewayConfig
from rpcsys.gateway.methods import INFER, LOAD, STREAM, WATCH, GrpcMethods, as_inference_error, stream_answer
from rpcsys.link.address import address_text
from rpcsys.link.admission import Admission, plain
from rpcsys.wire.inference import InferenceError
from rpcsys.wire.inference_requests import grpc_code

log = logging.getLogger(__name__)
#: The longest message of gRPC's clients.
_LONGEST = (1 << 31) - 1
#: Requests of one stream that are under way.
_STREAMED = 64
_HOW = "pip install grpcio, or give --grpc-port 0"


async def open_grpc(config: GatewayConfig, methods: GrpcMethods, admission: Admission) -> GrpcServer | None:
    """Serve gRPC where the flags say; None where it is off.

    Raises `ConfigError`: it is asked for, and grpcio is not installed; `PortRangeError`: its port is taken.
    """
    if config.grpc_port == 0:
        return None
    if importlib.util.find_spec("grpc") is None:
        if config.grpc_port is not None:
            raise ConfigError(f"--grpc-port {config.grpc_port}: gRPC needs grpcio, which is not installed; {_HOW}")
        log.info("gRPC is not served: grpcio is not installed (pip install grpcio)")
        return None
    server = GrpcServer(methods, admission, config)
    first = config.grpc_port or GRPC_PORT
    await server.open(config.host, first, first + 1 if config.grpc_port else GRPC_PORT_END)
    log.info("serving gRPC on %s:%d", config.host, server.port)
    return server


class GrpcServer:
    """A server of all methods. ``port``: where it listens."""

    def __init__(self, methods: GrpcMethods, admission: Admission, config: GatewayConfig) -> None:
        import grpc
        import grpc.aio

        self.port = 0
        self._grpc: Any = grpc
        self._methods = methods
        self._loop = asyncio.get_running_loop()
        self._codes = {code.value[0]: code for code in grpc.StatusCode}
        self._refusal = functools.lru_cache(1024)(functools.partial(_refusal, admission))
        options = {
            "grpc.max_receive_message_length": min(config.max_body, _LONGEST),
            "grpc.max_send_message_length": -1,
            "grpc.max_concurrent_streams": 1024,
            "grpc.max_metadata_size": 16 << 10,
            "grpc.so_reuseport": int(config.reuse_port),
            "grpc.keepalive_time_ms": 10_000,
            "grpc.keepalive_timeout_ms": 10_000,
            "grpc.keepalive_permit_without_calls": 1,
            "grpc.http2.min_ping_interval_without_data_ms": 5_000,
            "grpc.http2.min_recv_ping_interval_without_data_ms": 5_000,
        }
        self._server = grpc.aio.server(options=list(options.items()))
        self._server.add_generic_rpc_handlers((self._routes(),))

    async def open(self, host: str, port: int, port_end: int) -> None:
        """Listen on the first free port of ``[port, port_end)``. Raises `PortRangeError`."""
        for number in range(port, port_end):
            try:
                self.port = self._server.add_insecure_port(address_text(host, number))
            except RuntimeError:
                continue
            if self.port:
                await self._server.start()
                return
        where = f"no free port in [{port}, {port_end}) on {host} for gRPC"
        raise PortRangeError(f"{where}: stop what listens there, or give another --grpc-port (0 is off)")

    async def stop(self, grace: float) -> None:
        """Take no new calls; those under way have ``grace`` seconds to end."""
        await self._server.stop(grace)

    def _routes(self) -> Any:
        grpc = self._grpc
        handlers = {
            path: grpc.unary_unary_rpc_method_handler(functools.partial(self._unary, path))
            for path in self._methods.unary
        }
        handlers[INFER] = grpc.unary_unary_rpc_method_handler(self._infer)
        handlers[WATCH] = grpc.unary_stream_rpc_method_handler(self._watch)
        handlers[LOAD] = grpc.unary_unary_rpc_method_handler(self._load)
        handlers[STREAM] = grpc.stream_stream_rpc_method_handler(self._stream)

        class Routes(grpc.GenericRpcHandler):  # type: ignore[misc,name-defined]
            def service(self, details: Any) -> Any:
                return handlers.get(details.method)

        return Routes()

    # -------------------------------------------------------------- methods

    async def _unary(self, path: str, message: bytes, context: Any) -> bytes:
        await self._admit(context)
        try:
            return self._methods.answer(path, message)
        except (InferenceError, ProtocolError) as error:
            await self._abort(context, as_inference_error(error))

    async def _load(self, message: bytes, context: Any) -> bytes:
        await self._admit(context)
        loaded: asyncio.Future[InferenceError | None] = self._loop.create_future()
        try:
            self._methods.load(message, functools.partial(_settle, loaded))
            error = await loaded
        except (InferenceError, ProtocolError) as refused:
            error = as_inference_error(refused)
        if error is not None:
            await self._abort(context, error)
        return b""

    async def _watch(self, message: bytes, context: Any) -> None:
        await self._admit(context)
        try:
            async with contextlib.aclosing(self._methods.watch(message)) as answers:
                async for answer in answers:
                    await context.write(answer)
        except ProtocolError as error:
            await self._abort(context, as_inference_error(error))

    async def _infer(self, message: bytes, context: Any) -> bytes:
        await self._admit(context)
        size = len(message)
        answer: bytes | InferenceError
        try:
            self._methods.take(size)
        except InferenceError as error:
            await self._abort(context, error)
        try:
            future, call = self._begin(message, context)
            del message
            try:
                answer = await future
            except asyncio.CancelledError:
                if call is not None:
                    self._methods.give_up(call)
                raise
        finally:
            self._methods.give_back(size)
        if isinstance(answer, InferenceError):
            await self._abort(context, answer)
        return answer

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Answer in the order of the requests, several of which are under way; an error is an answer, too."""
        await self._admit(context)
        under_way: asyncio.Queue[tuple[Any, InferenceCall | None, int] | None] = asyncio.Queue(_STREAMED)
        reader = self._loop.create_task(self._read(requests, context, under_way))
        began: tuple[Any, InferenceCall | None, int] | None = None
        try:
            while True:
                began = await under_way.get()
                if began is None:
                    return
                await context.write(stream_answer(await began[0]))
                self._methods.give_back(began[2])
        finally:
            reader.cancel()
            while began is not None:
                self._drop(*began)
                began = None if under_way.empty() else under_way.get_nowait()

    async def _read(self, requests: AsyncIterator[bytes], context: Any, under_way: asyncio.Queue[Any]) -> None:
        """Begin the requests of a stream."""
        try:
            async for message in requests:
                size = len(message)
                try:
                    self._methods.take(size)
                except InferenceError as error:
                    await under_way.put((_done(self._loop, error), None, 0))
                    continue
                await under_way.put((*self._begin(message, context), size))
        finally:
            await under_way.put(None)

    def _drop(self, future: Any, call: InferenceCall | None, size: int) -> None:
        if call is not None:
            self._methods.give_up(call)
        self._methods.give_back(size)

    def _begin(self, message: bytes, context: Any) -> tuple[asyncio.Future[Any], InferenceCall | None]:
        """Begin a request: its future answer, and its call, if one is made."""
        future = self._loop.create_future()

        done = functools.partial(_settle, future)
        try:
            return future, self._methods.infer(message, context.time_remaining(), context.peer(), done)
        except (InferenceError, ProtocolError) as error:
            return _done(self._loop, as_inference_error(error).with_traceback(None)), None

    async def _admit(self, context: Any) -> None:
        why = self._refusal(context.peer())
        if why:
            await context.abort(self._grpc.StatusCode.PERMISSION_DENIED, why)

    async def _abort(self, context: Any, error: InferenceError) -> NoReturn:
        await context.abort(self._codes[grpc_code(error)], one_line(error, 2000))
        raise AssertionError("abort raises")


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    """Set the result of a future, unless nobody waits for it any more."""
    if not future.done():
        future.set_result(answer)


def _done(loop: asyncio.AbstractEventLoop, error: InferenceError) -> asyncio.Future[Any]:
    future = loop.create_future()
    future.set_result(error)
    return future


def _refusal(admission: Admission, peer: str) -> str:
    """Why a peer, as grpcio names it, is not served; "" if it is."""
    kind, _, where = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    host = where.rpartition(":")[0].strip("[]")
    return admission.refusal("gateway", plain(host))
