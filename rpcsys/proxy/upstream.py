"""Streams that are relayed to another daemon: links to the tracker, and with ``--next`` every stream."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from rpcsys.daemon.acceptor import ConnectionLimit
from rpcsys.daemon.dialling import dial, take_magic
from rpcsys.proxy.config import Address, ProxyConfig
from rpcsys.proxy.streams import ProxyStream, send_first
from rpcsys.wire import tracker
from rpcsys.wire.control import Via

log = logging.getLogger(__name__)

_ADVICE = "see what dials there, or raise --max-waiting and --max-waiting-per-address"

Join = Callable[[socket.socket, socket.socket, str, Callable[[], None]], None]


class Upstream:
    """Dials another daemon for a stream and joins the two: ``join(stream, connection, kind, callback at the end)``.

    ``port`` is the proxy's for clients, which the tracker receives. The limits are those of waiting streams.
    """

    def __init__(self, config: ProxyConfig, join: Join) -> None:
        self.port = 0
        self._public = config.public
        self._join = join
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._limit = ConnectionLimit(config.max_waiting_per_address, config.max_waiting, log, _ADVICE)
        self._dialling: set[asyncio.Task[None]] = set()

    def relay(self, stream: ProxyStream, target: Address, kind: str) -> None:
        """Relay a stream; close it if the limits are reached."""
        if not self._limit.admit(stream.address, self._loop.time()):
            stream.sock.close()
            return
        task = self._loop.create_task(self._connect(stream, target, kind))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def stop(self) -> None:
        """Cancel all dials, and close streams that are relayed later."""
        self._stopping = True
        for task in self._dialling:
            task.cancel()

    async def _connect(self, stream: ProxyStream, target: Address, kind: str) -> None:
        try:
            sock = await dial(*target)
            try:
                if self._stopping or not send_first(sock, self._introduction(stream)):
                    raise OSError("the proxy is stopping" if self._stopping else "it hung up")
                if stream.encrypted:
                    await take_magic(sock)
            except BaseException:
                sock.close()
                raise
        except BaseException as error:
            self._limit.leave(stream.address)
            stream.sock.close()
            if not isinstance(error, OSError):
                raise
            stranger = {"stranger": stream.address}
            log.warning("cannot relay to %s:%d: %s", *target, error.strerror or error, extra=stranger)
            return
        self._join(stream.sock, sock, kind, lambda: self._limit.leave(stream.address))

    def _introduction(self, stream: ProxyStream) -> bytes:
        """The first bytes for the other daemon: those read so far and, for a link, its address (in the clear)."""
        if stream.greeting is not None:
            return bytes(stream.raw)
        via = tracker.encode(Via((stream.address, stream.port), (self._public, self.port)))
        return tracker.MAGIC_BYTES + via + bytes(stream.raw if stream.encrypted else b"")
