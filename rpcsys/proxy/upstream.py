"""Streams that are relayed to another daemon: links to the tracker, and with ``--next`` every stream."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from rpcsys.daemon.acceptor import ConnectionLimit
from rpcsys.link.tcp import tune, tune_connected
from rpcsys.proxy.config import Address, ProxyConfig
from rpcsys.proxy.streams import ProxyStream, send_first
from rpcsys.wire import tracker
from rpcsys.wire.control import Via

log = logging.getLogger(__name__)
CONNECT_S = 5.0  # for each of a host's addresses. Clients and servers give up after about twice that.

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
            if self._stopping or not send_first(sock, self._introduction(stream)):
                sock.close()
                raise OSError("the proxy is stopping" if self._stopping else "it hung up")
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
        """The first bytes for the other daemon: the bytes read so far and, for a link, its address."""
        via = Via((stream.address, stream.port), (self._public, self.port))
        return bytes(stream.raw) + (b"" if stream.greeting is not None else tracker.encode(via))


async def dial(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket. Raises OSError: no such host, or none of its addresses answers."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host!r} is no host") from None
    problem = OSError(f"{host!r} has no address")
    for family, kind, protocol, _, address in found:
        try:
            return await _connected(socket.socket(family, kind, protocol), address)
        except asyncio.TimeoutError:
            problem = TimeoutError(f"no answer in {CONNECT_S:g} s")
        except OSError as error:
            problem = error.with_traceback(None)  # its frames refer to it: a cycle for the garbage collector
    try:
        raise problem
    finally:
        del problem


async def _connected(sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setblocking(False)
        tune(sock)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, address), CONNECT_S)
        tune_connected(sock)
    except BaseException:
        sock.close()
        raise
    return sock
