"""Ends TLS for many connections in one thread: on one side is the network, on the other a plain socket.

In the **server's role** the outer greeting of an accepted connection has been read already. TLS follows, and inside it
the client's greeting again, now with the secret of its match key. In the **client's role** a pinned match key is
dialled, and nothing of the client's own is sent before the server's certificate has the right pin (docs/wire.md, 2).
"""

from __future__ import annotations

import contextlib
import mmap
import select
import socket
import time
from typing import Callable, Collection, Dict, Optional

from rpcsys.errors import LimitExceeded, RpcsysError
from rpcsys.link import tls
from rpcsys.link.openssl import ssl
from rpcsys.link.tcp import KEEPALIVE_S, keep_alive
from rpcsys.link.termination import End, Partial, Termination
from rpcsys.link.tls import STRETCH, Tunnel
from rpcsys.link.tls_openings import Address, ClientOpening, Opened, ServerOpening, TlsOpening
from rpcsys.wire.handshake import Options
from rpcsys.wire.pinned_keys import PinnedMatchKey

TICK_S = 1.0  # how often `Terminator.turn` is to be called
LIMIT = 4096
#: With more connections a step is shorter: each may keep its buffers in OpenSSL.
MANY, SHORT = 64, 16 << 10
_BATCH = 128  # connections served in one turn


class Terminator:
    """Connections on which TLS ends; at most ``limit``.

    Register its ``fileno()``, and call `turn` when that is readable and every `TICK_S`; or let `turn` wait.
    """

    def __init__(self, limit: int = LIMIT, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self.ciphertext, self.plaintext = memoryview(mmap.mmap(-1, STRETCH)), memoryview(mmap.mmap(-1, STRETCH))
        self.stretch = STRETCH  # bytes of one step of a connection
        self._limit = limit
        self._epoll = select.epoll()
        self._ready: Dict[int, Callable[[int], None]] = {}
        self._openings: Dict[TlsOpening, None] = {}
        self._terminations: Dict[Termination, None] = {}
        self._client_context: Optional[ssl.SSLContext] = None
        self._tick_at = self._keep_at = 0.0

    def __len__(self) -> int:
        return len(self._openings) + len(self._terminations)

    def fileno(self) -> int:
        """A descriptor that is readable when `turn` has something to do."""
        return self._epoll.fileno()

    def turn(self, timeout: float = 0.0) -> None:
        """Serve the connections that are ready, after waiting at most ``timeout`` seconds for one."""
        for number, found in self._epoll.poll(timeout, _BATCH):
            ready = self._ready.get(number)  # None if it was closed earlier in this turn
            if ready is not None:
                ready(found)
        if self.now() >= self._tick_at:
            self._tick()

    def serve(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        expected: Collection[str],
        answer: bytes,
        on_open: Opened,
        on_end: End,
    ) -> None:
        """Serve a client whose outer greeting was read. Owns ``sock``.

        ``expected``: the match keys of which the inner greeting must have one, of a public name with any secret;
        ``answer``: what accepts the outer one.
        ``on_open(inner greeting, plain)`` gives the caller the plain socket for what follows, the answer to the inner
        greeting first. ``on_end(error)`` is called once, after that or instead: `NoTls`, `ProtocolError`,
        `ServerRefused`; `SessionLost` for a connection that breaks later.
        """
        self._open(ServerOpening(self, sock, context, expected, answer, on_open, on_end))

    def dial(
        self, address: Address, match_key: PinnedMatchKey, options: Options, plain: socket.socket, on_end: End,
        partial: Optional[Partial] = None,
    ) -> None:  # fmt: skip
        """Open a session for the client on ``plain``, and join the two. Owns ``plain``.

        ``options``: those of the client's greeting, which the server answers; ``partial``: as `Termination`'s.
        ``on_end(error)`` is called once: `ServerUnreachable`, `ServerRefused`, `WrongPin` or `NoTls` before the session
        is open, when ``plain`` gets TVM's refusal; `SessionLost` after.
        """
        if self._client_context is None:
            self._client_context = tls.client_context()
        self._open(ClientOpening(self, self._client_context, address, match_key, options, plain, on_end, partial))

    def close(self) -> None:
        """Close all connections."""
        for opening in list(self._openings):
            opening.end(None)
        for termination in list(self._terminations):
            termination.close()
        self._epoll.close()

    def _open(self, opening: TlsOpening) -> None:
        full = len(self) >= self._limit
        self._openings[opening] = None
        try:
            if full:
                raise LimitExceeded(f"{self._limit} connections are open already")
            opening.begin()
        except (RpcsysError, OSError) as error:
            opening.end(error)

    def _tick(self) -> None:
        now = self.now()
        self._tick_at = now + TICK_S
        for opening in [each for each in self._openings if each.due <= now]:
            opening.late()
        for termination in [each for each in self._terminations if each.due is not None and each.due <= now]:
            termination.close()
        if now >= self._keep_at:
            self._keep_at = now + KEEPALIVE_S
            for termination in self._terminations:
                keep_alive(termination.net)

    # For openings and terminations

    def watch(self, number: int, ready: Callable[[int], None], events: int) -> None:
        """Call ``ready`` with the events that have come to a descriptor."""
        self._ready[number] = ready
        self._epoll.register(number, events)

    def expect(self, number: int, events: int) -> None:
        """Change the events to watch for."""
        self._epoll.modify(number, events)

    def forget(self, number: int) -> None:
        """Watch a descriptor no more, which may be unknown or closed."""
        if self._ready.pop(number, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(number)

    def ended(self, termination: Termination) -> None:
        """A termination is closed."""
        del self._terminations[termination]
        self.stretch = STRETCH if len(self._terminations) <= MANY else SHORT
        termination.on_end(termination.error)

    def opened(self, opening: TlsOpening) -> None:
        """An opening is done: what follows are the bytes of its session, or nothing."""
        self._openings.pop(opening, None)

    def join(
        self, net: socket.socket, tunnel: Tunnel, plain: socket.socket, on_end: End, partial: Optional[Partial] = None
    ) -> None:
        """Move bytes between both sides until they end."""
        termination = Termination(self, net, tunnel, plain, on_end, partial)
        self._terminations[termination] = None
        self.stretch = STRETCH if len(self._terminations) <= MANY else SHORT
        termination.start()
