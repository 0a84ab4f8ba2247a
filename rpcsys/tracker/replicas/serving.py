"""Serves a tracker that is one of several, from its flags to its end."""

from __future__ import annotations

import logging
import socket

from rpcsys.daemon.acceptor import Acceptor
from rpcsys.daemon.certificate import Certificate
from rpcsys.daemon.http import serve_pages
from rpcsys.errors import ConfigError
from rpcsys.link.address import parse_address
from rpcsys.serve import Signals
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.replicas.config import EngineTls, engine_user, parse_place
from rpcsys.tracker.replicas.etcd import EtcdEngine
from rpcsys.tracker.replicas.service import ReplicaService, new_leader
from rpcsys.tracker.service import announced

log = logging.getLogger(__name__)
_ANY = ("0.0.0.0", "::", "")


async def serve(
    config: TrackerConfig, listener: socket.socket, web: socket.socket | None, certificate: Certificate | None,
    signals: Signals,
) -> int:  # fmt: skip
    """Serve until a signal or a stop message comes; return the exit status. Raises `ConfigError`."""
    engine = _engine(config)
    port = listener.getsockname()[1]
    host, port = parse_address(config.advertise, port) if config.advertise else (_host(config), port)
    http_port = web.getsockname()[1] if web is not None else 0
    service = ReplicaService(config, engine, new_leader(host, port, http_port))
    acceptors = [Acceptor(listener, service.accept)]
    if web is not None:
        acceptors.append(serve_pages(web, service.pages, None, certificate))
    try:
        await announced(config, acceptors, signals, service.stopped)
    finally:
        for acceptor in acceptors:
            acceptor.close()
        await service.close()
    return 0


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
