"""Joins sessions with their servers: through TLS, or in the clear where the lab's rules allow that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable

from rpcsys.daemon.dialling import dial
from rpcsys.daemon.relay import Pair, Relay
from rpcsys.daemon.sockets import Sockets
from rpcsys.errors import ServerUnreachable, SessionLost, one_line
from rpcsys.forward.state import DeskLease
from rpcsys.forward.tvm_packets import TvmPackets
from rpcsys.link.address import address_text
from rpcsys.link.termination import READ
from rpcsys.link.terminator import TICK_S, Terminator
from rpcsys.wire import pinned_keys
from rpcsys.wire.handshake import Greeting, encode_greeting
from rpcsys.wire.pinned_keys import shown

log = logging.getLogger(__name__)


class Sessions:
    """Joins sessions with their servers. To be made in the event loop.

    TLS has a thread of its own: a turn of the loop takes as long as all that is done for a message.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = Sockets()
        self._relay = Relay(self._sockets)
        self._pairs: dict[Pair, None] = {}  # those in the clear
        self._terminator = Terminator()
        self._orders: deque[Callable[[], None]] = deque()  # to the thread
        self._waker, self._woken = socket.socketpair()
        self._terminator.watch(self._woken.fileno(), self._obey, READ)
        self._over = False
        self._thread = threading.Thread(target=self._serve, name="sessions", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._terminator) + len(self._pairs)

    async def join(self, sock: socket.socket, greeting: Greeting, leased: DeskLease) -> None:
        """Open a session at its server, and join the two. Raises `ServerUnreachable`: it is not there."""
        match_key = pinned_keys.parse(leased.match_key)
        place, name = (leased.host, leased.port), f"{shown(leased.match_key)} at {address_text(*leased[:2])}"
        log.info("session of %s%s", name, "" if match_key else ", in the clear")
        ended = _note_end(name)
        if match_key is not None:
            options, partial = greeting.options, TvmPackets().partial
            self._order(lambda: self._terminator.dial(place, match_key, options, sock, ended, partial))
            return
        try:
            server = await dial(*place)
        except OSError as error:
            raise ServerUnreachable(f"no device server for {name} ({error.strerror or error})") from None
        with contextlib.suppress(OSError):  # that it has ended is what the pair finds
            server.send(encode_greeting(greeting))

        def over(pair: Pair) -> None:
            del self._pairs[pair]
            ended(SessionLost("the connection broke") if pair.broke else None)

        pair = Pair(self._relay, sock, server, over, prompt=True)
        self._pairs[pair] = None
        pair.start()

    def close(self) -> None:
        """End all sessions."""
        if len(self):
            log.info("%d sessions cut off", len(self))
        for pair in list(self._pairs):
            pair.close()
        self._sockets.close()
        self._order(self._end)
        self._thread.join()
        self._waker.close()
        self._woken.close()

    def _order(self, work: Callable[[], None]) -> None:
        self._orders.append(work)
        self._waker.send(b"\0")

    # In the thread

    def _serve(self) -> None:
        while not self._over:
            self._terminator.turn(TICK_S)
        self._terminator.close()

    def _obey(self, _: int) -> None:
        self._woken.recv(1)
        self._orders.popleft()()

    def _end(self) -> None:
        self._over = True


def _note_end(name: str) -> Callable[[Exception | None], None]:
    def ended(error: Exception | None) -> None:
        if error is not None:
            log.warning("the lease of %s is lost: %s", name, one_line(error))
        else:
            log.info("session of %s ended", name)

    return ended
