"""Makes a tracker that is one of several from its flags."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator

from rpcsys.errors import ConfigError
from rpcsys.link.address import parse_address
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.replicas.config import EngineTls, engine_user, parse_place
from rpcsys.tracker.replicas.etcd import EtcdEngine
from rpcsys.tracker.replicas.service import ReplicaService, new_leader
from rpcsys.tracker.webhooks import Webhooks

_ANY = ("0.0.0.0", "::", "")


@contextlib.asynccontextmanager
async def replica(
    config: TrackerConfig, listener: socket.socket, web: socket.socket | None, webhooks: Webhooks | None = None
) -> AsyncIterator[ReplicaService]:
    """A replica that is reached at ``listener``, with pages at ``web``. Raises `ConfigError`."""
    engine = _engine(config)
    port = listener.getsockname()[1]
    host, port = parse_address(config.advertise, port) if config.advertise else (_host(config), port)
    me = new_leader(host, port, 0 if web is None else web.getsockname()[1])
    service = ReplicaService(config, engine, me, webhooks)
    try:
        yield service
    finally:
        await service.close()


def _engine(config: TrackerConfig) -> EtcdEngine:
    assert config.replicate is not None, "only a replica has an engine"
    tls = None
    if config.replicate_ca is not None:
        tls = EngineTls(config.replicate_ca, config.replicate_cert, config.replicate_key)
    elif config.replicate_cert is not None or config.replicate_key is not None:
        raise ConfigError("--replicate-cert and --replicate-key are for TLS: give --replicate-ca FILE, too")
    return EtcdEngine(parse_place(config.replicate), tls, engine_user())


def _host(config: TrackerConfig) -> str:
    return socket.gethostname() if config.host in _ANY else config.host
