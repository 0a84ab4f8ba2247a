"""Serves a tracker, alone or one of several, from its flags to its end."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from rpcsys.daemon.acceptor import Acceptor, leave_no_core
from rpcsys.daemon.certificate import Certificate
from rpcsys.daemon.http import serve_pages
from rpcsys.daemon.loop import until_signal
from rpcsys.serve import Signals, announce, bind, notify
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.service import TrackerService
from rpcsys.tracker.webhooks import Webhooks, webhooks

if TYPE_CHECKING:
    from rpcsys.tracker.replicas.service import ReplicaService

log = logging.getLogger(__name__)


async def serve(config: TrackerConfig) -> int:
    """Serve until a signal or a stop message comes, or a replica has failed; return the exit status.

    Raises `PortRangeError`, `ConfigError`: as `rpcsys.serve.bind`.
    """
    if config.lab:
        leave_no_core()
    listener = bind(config.host, config.port, config.port_end)
    web = bind(config.host, config.http_port, config.http_port + 1, "--http-port") if config.http_port else None
    certificate = Certificate(config.http_cert, config.http_key) if config.http_cert else None
    with contextlib.closing(Signals()) as signals:
        async with webhooks(config) as told, _running(config, listener, web, told) as service:
            acceptors = [Acceptor(listener, service.accept)]
            if web is not None:
                acceptors.append(serve_pages(web, service.pages, service.guard(), certificate))
            try:
                log.info("serving on %s:%d", config.host, acceptors[0].port)
                announce("tracker", config.host, acceptors[0].port, http_port=config.http_port or None)
                await until_signal(signals, service.stopped)
                notify("STOPPING=1")
            finally:
                for acceptor in acceptors:
                    acceptor.close()
    return int(service.failed)


def _running(
    config: TrackerConfig, listener: socket.socket, web: socket.socket | None, told: Webhooks | None
) -> contextlib.AbstractAsyncContextManager[TrackerService | ReplicaService]:
    if config.replicate is None:
        return _alone(config, told)
    from rpcsys.tracker.replicas import serving  # a tracker without replicas loads nothing of it

    return serving.replica(config, listener, web, told)


@contextlib.asynccontextmanager
async def _alone(config: TrackerConfig, told: Webhooks | None) -> AsyncIterator[TrackerService]:
    service = TrackerService(config, webhooks=told)
    try:
        yield service
    finally:
        service.close()
