"""Streams that are relayed to another daemon: links to the tracker, and whatever comes where there is a next proxy."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable

from rpcsys.proxy.config import Address, Config
from rpcsys.proxy.outward import dial
from rpcsys.proxy.stream import Stream, send_whole
from rpcsys.wire import tracker
from rpcsys.wire.control import Via

log = logging.getLogger(__name__)

Join = Callable[[socket.socket, socket.socket, str, Callable[[], None]], None]


class Onward:
    """Dials for streams and has them joined: ``join(stream, connection, kind, what to call at their end)``.

    ``port`` is the proxy's own, which the tracker is told. Limits are those of streams that wait.
    """

    def __init__(self, config: Config, join: Join) -> None:
        self.port = 0
        self._config = config
        self._join = join
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._counts: Counter[str] = Counter()
        self._dialling: set[asyncio.Task[None]] = set()

    def relay(self, stream: Stream, target: Address, kind: str) -> None:
        """Relay a stream, unless too many are."""
        config, address = self._config, stream.address
        if self._counts.total() >= config.max_waiting or self._counts[address] >= config.max_waiting_per_address:
            stranger = {"stranger": address}
            log.warning("%s of %s dropped: too many of them (--max-waiting…)", kind, stream.where, extra=stranger)
            stream.sock.close()
            return
        self._counts[address] += 1
        task = self._loop.create_task(self._begin(stream, target, kind))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping = True
        for task in self._dialling:
            task.cancel()

    async def _begin(self, stream: Stream, target: Address, kind: str) -> None:
        try:
            sock = await self._reach(target, self._introduction(stream))
        except BaseException as error:
            self._over(stream)
            stream.sock.close()
            if not isinstance(error, OSError):
                raise
            stranger = {"stranger": stream.address}
            log.warning("cannot relay to %s:%d: %s", *target, error.strerror or error, extra=stranger)
            return
        self._join(stream.sock, sock, kind, lambda: self._over(stream))

    async def _reach(self, target: Address, first: bytes) -> socket.socket:
        """A connection to another daemon that has been told ``first``. Raises OSError."""
        sock = await dial(*target)
        if self._stopping or not send_whole(sock, first):
            sock.close()
            raise OSError("the proxy is stopping" if self._stopping else "it hung up")
        return sock

    def _introduction(self, stream: Stream) -> bytes:
        """What another daemon hears first: what was read here and, of a link, where it is from."""
        first = bytes(stream.opening.raw)
        if stream.opening.greeting is None:
            first += tracker.encode(Via((stream.address, stream.port), (self._config.public, self.port)))
        return first

    def _over(self, stream: Stream) -> None:
        self._counts[stream.address] -= 1
        if not self._counts[stream.address]:
            del self._counts[stream.address]
