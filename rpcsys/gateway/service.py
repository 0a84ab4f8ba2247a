"""The gateway's sockets for clients, and its beginning and end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any

from rpcsys.compiled import speedups
from rpcsys.daemon.acceptor import Acceptor, leave_no_core, raise_descriptor_limit
from rpcsys.daemon.http import health_page, metrics_page, serve_pages
from rpcsys.daemon.loop import serving, until_signal
from rpcsys.daemon.sockets import Sockets
from rpcsys.errors import PortRangeError
from rpcsys.gateway.actions import ReplicaPlace
from rpcsys.gateway.backend import Backend
from rpcsys.gateway.catalog import ModelCatalog
from rpcsys.gateway.config import GatewayConfig
from rpcsys.gateway.connection import ClientCrowd
from rpcsys.gateway.grpc_server import GrpcServer, open_grpc
from rpcsys.gateway.http_connection import HttpConnection, HttpSettings
from rpcsys.gateway.http_heads import KnownHeads
from rpcsys.gateway.inference import InferenceDesk
from rpcsys.gateway.memory import BodyMemory
from rpcsys.gateway.methods import GrpcMethods
from rpcsys.gateway.metrics import GatewayMetrics
from rpcsys.gateway.model_file import about_model
from rpcsys.gateway.rest import RestApi
from rpcsys.gateway.settings import GatewaySettings, LeasedPool
from rpcsys.gateway.shared_memory import SharedMemory
from rpcsys.link.admission import Admission, own_address, plain
from rpcsys.link.tcp import drain_and_close
from rpcsys.serve import Signals, announce, bind, notify
from rpcsys.wire.http1 import HttpLimits
from rpcsys.wire.http1_requests import make_response
from rpcsys.wire.memory import Pool, give_back_memory

log = logging.getLogger(__name__)
_LOOK_S = 0.02  # between two looks whether all calls have ended
_LAST_S = 1.0  # for the last answers to be taken
_KEPT_S = 10.0  # without a large body, the memory that is kept for them is given back


class GatewayService:
    """A gateway. To be made inside its event loop. ``settings``: of its models."""

    def __init__(self, config: GatewayConfig, settings: GatewaySettings) -> None:
        self.sockets = Sockets(self._turn_ended)
        keys = config.keys or ("",) * len(config.servers)
        places = [ReplicaPlace(*server, key) for server, key in zip(config.servers, keys, strict=True)]
        self.backend = Backend(self.sockets, settings, config.tracker, places)
        self.crowd = ClientCrowd(self.sockets)
        self.memory = BodyMemory(config.memory)
        self.admission = Admission(config.admit)
        self.stopping = False
        pool = Pool()
        shared = SharedMemory(config.shared_memory)
        catalog = ModelCatalog(self.backend, shared)
        desk = InferenceDesk(self.backend, shared, pool, config.max_json)
        limits = HttpLimits(body=config.max_body)
        heads = KnownHeads(RestApi(desk, catalog).route, limits)
        self._http = HttpSettings(heads, limits, self.memory, pool)
        self.methods = GrpcMethods(desk, catalog, self.memory)
        self.metrics = GatewayMetrics(self.backend, self.crowd, self.memory)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_KEPT_S, self._look_at_memory)

    def accept(self, sock: socket.socket, address: Any) -> None:
        """Add a client's connection over HTTP; ``address`` as `accept` returned it."""
        host = plain(address[0])
        why = self.admission.refusal("gateway", host, own_address(sock))
        if why:
            log.info("a client is refused: %s", why, extra={"stranger": host})
            text = f'{{"error":"{why}"}}'.encode()
            drain_and_close(sock, make_response(403, len(text), [("Content-Type", "application/json")], False) + text)
            return
        HttpConnection(self.crowd, sock, self._http)

    def _turn_ended(self) -> None:
        self.backend.turn_ended()
        self.crowd.flush()

    def _look_at_memory(self) -> None:
        if self.memory.is_idle():
            self._http.pool.drop_idle()
            if speedups is not None:
                speedups.drop_idle_memory()
            give_back_memory()
        self._timer = self._loop.call_later(_KEPT_S, self._look_at_memory)

    async def drain(self, signals: Signals, grace: float) -> None:
        """Let the requests that are under way end, until the grace is over or another signal comes."""
        signals.received()
        self.stopping = True
        self.methods.stop()
        for connection in self.crowd.all():
            if isinstance(connection, HttpConnection):
                connection.finish()
        idle = asyncio.Event()
        self._look(idle)
        try:
            await asyncio.wait_for(until_signal(signals, idle), grace)
        except asyncio.TimeoutError:
            log.info("calls are cut off: they have not ended within %g s", grace)

    def _look(self, idle: asyncio.Event) -> None:
        """Set ``idle`` when all requests are answered, those over gRPC, too, and all watches have ended."""
        backend = self.backend
        if backend.state.idle and not backend.watchers and not any(connection.busy for connection in self.crowd.all()):
            idle.set()
        else:
            asyncio.get_running_loop().call_later(_LOOK_S, self._look, idle)

    def close(self) -> None:
        """End all that is left."""
        self._timer.cancel()
        self.crowd.close()
        self.backend.close()
        self.sockets.close()


def settings_of(config: GatewayConfig) -> GatewaySettings:
    """What the gateway's state is told. Raises `UsageError` and `ModelError`: a pool's file cannot be used."""
    pools = {
        name: LeasedPool(pool.key, pool.file, about_model(pool.file), pool.most, config.pool_idle)
        for name, pool in config.pools.items()
    }
    return GatewaySettings(config.queue, config.batches, pools, config.modules, config.model_control)


def bind_http(config: GatewayConfig) -> socket.socket:
    """The socket for HTTP: not at the port that gRPC was given. Raises as `rpcsys.serve.bind`."""
    grpc_port = config.grpc_port or 0
    if not config.port <= grpc_port < config.port_end or config.reuse_port:
        return bind(config.host, config.port, config.port_end, reuse_port=config.reuse_port)
    if config.port < grpc_port:
        with contextlib.suppress(PortRangeError):
            return bind(config.host, config.port, grpc_port)
    return bind(config.host, grpc_port + 1, config.port_end)


async def serve(config: GatewayConfig) -> int:
    """Serve until a signal, then until the calls have ended, at most for the grace; the exit status.

    Raises PortRangeError or ConfigError, as `rpcsys.serve.bind` does; ConfigError: gRPC is asked for without grpcio;
    what `settings_of` raises.
    """
    raise_descriptor_limit()
    leave_no_core()
    settings = settings_of(config)
    listener = bind_http(config)
    pages = bind(config.host, config.http_port, config.http_port + 1, "--http-port") if config.http_port else None
    async with serving() as (signals, closing):
        service = GatewayService(config, settings)
        closing.callback(service.close)
        grpc: GrpcServer | None = await open_grpc(config, service.methods, service.admission)
        if pages is not None:
            found = {"/healthz": health_page, "/metrics": metrics_page(service.metrics)}
            closing.callback(serve_pages(pages, found).close)
        acceptor = Acceptor(listener, service.accept)
        try:
            host, port = config.host, listener.getsockname()[1]
            log.info("serving HTTP on %s:%d", host, port)
            grpc_port = grpc.port if grpc is not None else None
            announce("gateway", host, port, http_port=config.http_port or None, grpc_port=grpc_port)
            await until_signal(signals, asyncio.Event())
            notify("STOPPING=1")
        finally:
            acceptor.close()
        ended = asyncio.ensure_future(grpc.stop(config.grace)) if grpc is not None else None
        await service.drain(signals, config.grace)
        if ended is not None:
            ended.cancel()
    return 0
