"""The openings of encrypted sessions, in both roles, until TLS is done and the inner greeting is said.

A peer that is not known yet costs a socket, one read and a bounded time.
"""

from __future__ import annotations

import selectors
import socket
from typing import TYPE_CHECKING, Callable, Collection, Optional, Tuple

from rpcsys.errors import NoTls, ProtocolError, RpcsysError, ServerRefused, ServerUnreachable, WrongPin
from rpcsys.link.address import address_text
from rpcsys.link.dialling import Dialling
from rpcsys.link.openssl import ssl
from rpcsys.link.tcp import drain_and_close
from rpcsys.link.termination import READ, WRITE, End, Partial
from rpcsys.link.tls import Tunnel, reason
from rpcsys.wire import first_bytes, keys
from rpcsys.wire.handshake import (
    CLIENT,
    AnswerReader,
    Greeting,
    OpeningReader,
    Options,
    encode_greeting,
    encode_mismatch,
)
from rpcsys.wire.pinned_keys import PinnedMatchKey, public_name, shown

if TYPE_CHECKING:
    from typing import Protocol

    from rpcsys.link.termination import SharedParts

    class OpeningParts(SharedParts, Protocol):
        """What openings share, and where they end."""

        def opened(self, opening: TlsOpening) -> None:
            """An opening is done: what follows are the bytes of its session, or nothing."""

        def join(
            self, net: socket.socket, tunnel: Tunnel, plain: socket.socket, on_end: End,
            partial: Optional[Partial] = None,
        ) -> None:  # fmt: skip
            """Move bytes between both sides until they end."""


HANDSHAKE_S = 5.0  # for a client: from its outer greeting to its inner one
DIAL_S = 20.0  # for a server: to be connected, to answer the outer greeting, and for the handshake
_READ = 16 << 10  # bytes of one read

Opened = Callable[[Greeting, socket.socket], None]
Address = Tuple[str, int]


class TlsOpening:
    """A connection until its greeting inside TLS. Its bytes beyond that stay in the tunnel, or in the kernel."""

    def __init__(self, owner: OpeningParts, sock: Optional[socket.socket], on_end: End, seconds: float) -> None:
        self.due = owner.now() + seconds
        self._owner, self._sock, self._on_end = owner, sock, on_end
        self._unsent = b""

    def begin(self) -> None:
        """Start. Raises `RpcsysError` or OSError."""
        raise NotImplementedError

    def _arrived(self) -> None:
        """Read what has arrived. Raises BlockingIOError, EOFError, OSError or `RpcsysError`."""
        raise NotImplementedError

    def _hung_up(self) -> RpcsysError:
        """The error for a connection that ends or breaks now."""
        raise NotImplementedError

    def late(self) -> None:
        """End: it takes too long."""
        raise NotImplementedError

    def _ready(self, found: int) -> None:
        try:
            if found & ~WRITE:
                self._arrived()
            if self._sock is not None:
                self._flush()
        except BlockingIOError:
            pass
        except (EOFError, OSError):
            self.end(self._hung_up())
        except RpcsysError as error:
            self.end(error)

    def _shake_hands(self, tunnel: Tunnel) -> bool:
        """Go on with the handshake; whether it is done."""
        assert self._sock is not None
        data = self._sock.recv(_READ)
        if not data:
            raise EOFError
        tunnel.feed(data)
        try:
            return tunnel.handshake()
        finally:
            self._send(tunnel.outgoing())  # also the alert that says why it failed

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self._flush()

    def _flush(self) -> None:
        assert self._sock is not None
        if not self._unsent:
            return
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            pass
        self._owner.expect(self._sock.fileno(), READ | (WRITE if self._unsent else 0))

    def end(self, error: Optional[Exception]) -> None:
        """Close the connection, for this reason."""
        self._close(self._leave())
        self._on_end(error)

    def _close(self, sock: Optional[socket.socket]) -> None:
        if sock is not None:
            drain_and_close(sock)

    def _leave(self) -> Optional[socket.socket]:
        """Leave the terminator's table and epoll; the socket."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._owner.forget(sock.fileno())
        self._owner.opened(self)
        return sock


class ServerOpening(TlsOpening):
    """A client whose outer greeting was read."""

    def __init__(
        self,
        owner: OpeningParts,
        sock: socket.socket,
        context: ssl.SSLContext,
        expected: Collection[str],
        answer: bytes,
        on_open: Opened,
        on_end: End,
    ) -> None:
        super().__init__(owner, sock, on_end, HANDSHAKE_S)
        self._tunnel = Tunnel(context, server=True)
        self._expected, self._answer, self._on_open = expected, answer, on_open
        self._reader = OpeningReader()

    def begin(self) -> None:
        assert self._sock is not None
        self._sock.setblocking(False)
        self._owner.watch(self._sock.fileno(), self._ready, READ)
        self._send(self._answer)

    def _arrived(self) -> None:
        if self._tunnel.open:
            assert self._sock is not None
            data = self._sock.recv(_READ)
            if not data:
                raise EOFError
            self._tunnel.feed(data)
        elif not self._shake_hands(self._tunnel):
            return
        greeting = self._inner_greeting()
        if greeting is not None:
            self._check(greeting)

    def _inner_greeting(self) -> Optional[Greeting]:
        reader = self._reader
        try:
            while reader.result is None:
                space = memoryview(bytearray(reader.needed))
                count = self._tunnel.read_into(space)
                if not count:
                    return None
                reader.receive(bytes(space[:count]))
        except ssl.SSLError as error:
            raise ProtocolError(f"the client's bytes are no TLS: {reason(error)}") from None
        return reader.result

    def _check(self, greeting: Greeting) -> None:
        # Every one is compared: the time says nothing about any.
        said = greeting.key, public_name(greeting.key)
        known = [key for key in self._expected if sum(keys.same(key, one) for one in said)]
        if greeting.role != CLIENT or not known:
            self._tunnel.write((encode_mismatch(),))
            self._tunnel.close()
            self._send(self._tunnel.outgoing())
            raise ServerRefused(f"{shown(greeting.key)} is not served here now: its secret is another one")
        ours, theirs = socket.socketpair()
        net = self._leave()
        assert net is not None
        self._on_open(greeting, theirs)
        self._owner.join(net, self._tunnel, ours, self._on_end)

    def _hung_up(self) -> RpcsysError:
        return NoTls("the client hung up in the handshake")

    def late(self) -> None:
        self.end(NoTls(f"the client did not finish its handshake in {HANDSHAKE_S:g} s"))


class ClientOpening(TlsOpening):
    """A session that is dialled."""

    def __init__(
        self,
        owner: OpeningParts,
        context: ssl.SSLContext,
        address: Address,
        match_key: PinnedMatchKey,
        options: Options,
        plain: socket.socket,
        on_end: End,
        partial: Optional[Partial],
    ) -> None:
        super().__init__(owner, None, on_end, DIAL_S)
        self._tunnel = Tunnel(context, server=False, pins=(match_key.pin,))
        self._where, self._name = address_text(*address), shown(match_key.text)
        self._outer = Greeting(CLIENT, match_key.name, Options(session=options.session))
        self._inner = Greeting(CLIENT, match_key.text, options)
        self._plain, self._partial = plain, partial
        self._address = address
        self._dialling: Optional[Dialling] = None
        self._watched = -1
        self._reader = AnswerReader()

    def begin(self) -> None:
        self._dialling = Dialling(*self._address)
        self._await(self._dialling)

    def _await(self, dialling: Dialling) -> None:
        self._watched, event = dialling.awaited
        self._owner.watch(self._watched, self._dial, WRITE if event == selectors.EVENT_WRITE else READ)

    def _dial(self, _: int) -> None:
        assert self._dialling is not None
        try:
            sock = self._dialling.advance()
        except OSError as error:
            self.end(self._unreachable(error.strerror or str(error)))
            return
        self._owner.forget(self._watched)
        if sock is None:
            self._await(self._dialling)
            return
        self._dialling, self._sock = None, sock
        self._owner.watch(sock.fileno(), self._ready, READ)
        self._tunnel.handshake()
        # The outer greeting and TLS's first message go out together.
        self._unsent = encode_greeting(self._outer) + self._tunnel.outgoing()
        self._ready(WRITE)

    def _arrived(self) -> None:
        try:
            if self._reader.result is None and not self._read_answer():
                return
            if not self._shake_hands(self._tunnel):
                return
        except first_bytes.OtherProtocol as error:
            what = error.kind or "no device server or proxy"
            raise ServerUnreachable(f"{self._where} is {what}, not the server of {self._name}") from None
        except WrongPin as error:
            raise WrongPin(f"what answers at {self._where} is not the server of {self._name}: {error}") from None
        except NoTls as error:
            raise NoTls(f"the server at {self._where}: {error}") from None
        self._tunnel.write((encode_greeting(self._inner),))
        net = self._leave()
        assert net is not None
        self._owner.join(net, self._tunnel, self._plain, self._on_end, self._partial)

    def _read_answer(self) -> bool:
        """Read the answer to the outer greeting, and nothing beyond; whether it is whole."""
        assert self._sock is not None
        while self._reader.result is None:
            data = self._sock.recv(self._reader.needed)
            if not data:
                raise EOFError
            self._reader.receive(data)
        if self._reader.result.code != "success":
            raise ServerRefused(
                f"{self._name} is not served at {self._where} now: its turn is over, or its server has left the proxy "
                "there; request it again through the tracker, or see query_tracker"
            )
        return True

    def _hung_up(self) -> RpcsysError:
        if self._reader.result is None:
            return self._unreachable("it closed the connection")
        return NoTls(
            f"the server at {self._where} closed the handshake: it is older than this client, or something in between "
            "changes bytes"
        )

    def late(self) -> None:
        self.end(self._unreachable(f"no answer within {DIAL_S:g} s"))

    def _unreachable(self, why: str) -> RpcsysError:
        return ServerUnreachable(f"no device server for {self._name} at {self._where} ({why}); try: query_tracker")

    def _leave(self) -> Optional[socket.socket]:
        if self._dialling is not None:
            self._owner.forget(self._watched)
            self._dialling.close()
        return super()._leave()

    def _close(self, sock: Optional[socket.socket]) -> None:
        super()._close(sock)
        drain_and_close(self._plain, encode_mismatch())
