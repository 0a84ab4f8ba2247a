"""One connection on which TLS ends: its bytes move between a network socket, through a tunnel, and a plain socket.

A step receives at most a stretch, encrypts or decrypts it, and sends it. What the other side does not take at once is
kept, and nothing more of that direction is read until it is sent: a peer that stops costs one stretch each way, and
delays no other connection.

The end of a direction is passed on after its last byte, while the other direction continues. When a side breaks, the
other gets `LINGER_S` to take its last bytes, then it is closed.
"""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING, Callable, Optional, Union

from rpcsys.errors import SessionLost
from rpcsys.link.openssl import ssl
from rpcsys.link.tcp import acknowledge_at_once, drain_and_close
from rpcsys.link.tls import STRETCH, Tunnel, reason

if TYPE_CHECKING:
    from typing import Protocol

    class SharedParts(Protocol):
        """What terminations share: two buffers, a clock, and an epoll."""

        ciphertext: memoryview
        plaintext: memoryview
        stretch: int  # bytes of one step

        def now(self) -> float:
            """The time in seconds."""

        def watch(self, number: int, ready: Callable[[int], None], events: int) -> None:
            """Call ``ready`` with the events that have come to a descriptor."""

        def expect(self, number: int, events: int) -> None:
            """Change the events to watch for."""

        def forget(self, number: int) -> None:
            """Watch a descriptor no more, which may be unknown or closed."""

        def ended(self, termination: Termination) -> None:
            """A termination is closed."""


READ, WRITE = select.EPOLLIN, select.EPOLLOUT
FAILED, HUNG_UP = select.EPOLLERR, select.EPOLLHUP  # epoll always reports both
NOTHING = select.EPOLLET  # only that the socket has failed or hung up, once
LINGER_S = 5.0
#: Bytes of one direction. AES-GCM's bound is 24 million records (RFC 8446, 5.5), and Python offers no key update.
MOST = 256 << 30
_EMPTY = memoryview(b"")

End = Callable[[Optional[Exception]], None]
Partial = Callable[[memoryview], bool]


class Termination:
    """Moves bytes between ``net``, through its open ``tunnel``, and ``plain``, until both have ended. Owns both.

    ``on_end`` is for the owner to call at the end, with the ``error`` that broke the network's side, if one did.
    ``partial``: for a peer of TVM on ``plain``, which waits for acknowledgements within a message: whether its bytes so
    far end within one (`acknowledge_at_once`). It is called with each piece of them.
    """

    __slots__ = (
        *("_closed", "_discarding", "_down", "_moved", "_net_ended", "_net_shut", "_net_wanted", "_owner"),
        *("_plain", "_plain_ended", "_plain_shut", "_plain_wanted", "_partial", "_said_end", "_tunnel", "_up"),
        *("due", "error", "net", "on_end"),
    )

    def __init__(
        self,
        owner: SharedParts,
        net: socket.socket,
        tunnel: Tunnel,
        plain: socket.socket,
        on_end: End,
        partial: Optional[Partial] = None,
    ) -> None:
        self.net = net
        self.due: Optional[float] = None  # when it is to be closed, whatever is unsent
        self.error: Optional[Exception] = None
        self.on_end = on_end
        self._owner, self._tunnel, self._plain, self._partial = owner, tunnel, plain, partial
        self._up = self._down = _EMPTY  # what net, and what plain, has not taken
        self._net_ended = self._plain_ended = False  # whether nothing more comes from it
        self._net_shut = self._plain_shut = False  # whether nothing more is sent to it
        self._said_end = False  # whether TLS has said so
        self._discarding = False  # whether plain takes nothing more
        self._closed = False
        self._moved = 0
        self._net_wanted = self._plain_wanted = READ

    @property
    def stuck(self) -> bool:
        """Whether the network's end has not taken what was sent."""
        return len(self._up) > 0

    def start(self) -> None:
        """Begin, with what has arrived behind the handshake and what it has left to be sent."""
        self._plain.setblocking(False)
        self._owner.watch(self.net.fileno(), self._net_ready, READ)
        self._owner.watch(self._plain.fileno(), self._plain_ready, READ)
        self._send_up(self._tunnel.outgoing())
        self._decrypt()
        self._settle()

    # From the network

    def _net_ready(self, found: int) -> None:
        if found & WRITE and self._up:
            self._flush_up()
        if self._net_wanted & READ:
            if found & (READ | FAILED | HUNG_UP):
                self._receive_down()
        elif found & FAILED:
            self._net_broke("connection reset")
        self._settle()

    def _receive_down(self) -> None:
        owner = self._owner
        try:
            count = self.net.recv_into(owner.ciphertext, owner.stretch)
        except BlockingIOError:
            return
        except OSError as error:
            self._net_broke(error.strerror or str(error))
            return
        if self._discarding:
            self._net_ended = not count
        elif count:
            self._decrypt(owner.ciphertext[:count])
        else:
            self._tunnel.feed_end()
            self._decrypt()

    def _decrypt(self, arrived: memoryview = _EMPTY) -> None:
        """Pass on what has arrived and is decrypted, as far as the plain side takes it."""
        space, tunnel = self._owner.plaintext, self._tunnel
        try:
            count = tunnel.receive(arrived, space) if arrived else tunnel.read_into(space)
            while count:
                self._send_down(space[:count])
                if self._down or self._discarding or tunnel.drained:
                    break
                count = tunnel.read_into(space)
        except EOFError:
            self._net_ended = True
        except ssl.SSLError as error:
            self._net_broke(reason(error))
        else:
            if tunnel.leaving.pending:
                self._send_up(tunnel.outgoing())  # a wish for other keys is answered
            if len(self._up) > 4 * STRETCH:
                self._net_broke("it asks for other keys, and reads nothing")

    def _send_down(self, data: memoryview) -> None:
        self._moved += len(data)
        if self._moved > MOST:
            self._wear_out()
        try:
            sent = self._plain.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._plain_takes_no_more()
            return
        if sent < len(data):
            self._down = memoryview(bytes(data[sent:]))

    def _flush_down(self) -> None:
        try:
            self._down = self._down[self._plain.send(self._down) :]
        except BlockingIOError:
            return
        except OSError:
            self._plain_takes_no_more()
            return
        if not self._down:
            self._decrypt()

    # From the plain side

    def _plain_ready(self, found: int) -> None:
        if found & WRITE and self._down:
            self._flush_down()
        if self._plain_wanted & READ:
            if found & (READ | FAILED | HUNG_UP):
                self._receive_up()
        elif found & (FAILED | HUNG_UP):
            self._linger()  # nobody is there who could take what still comes
        self._settle()

    def _receive_up(self) -> None:
        space = self._owner.plaintext
        try:
            count = self._plain.recv_into(space, self._owner.stretch)
        except BlockingIOError:
            return
        except OSError:
            self._plain_takes_no_more()
            return
        if not count:
            self._plain_ended = True
            return
        if self._partial is not None and self._partial(space[:count]):
            acknowledge_at_once(self._plain)
        self._moved += count
        if self._moved > MOST:
            self._wear_out()
        try:
            self._send_up(self._tunnel.seal(space[:count]))
        except ssl.SSLError as error:
            self._net_broke(reason(error))

    def _send_up(self, data: Union[bytes, memoryview]) -> None:
        if self._up:
            self._up = memoryview(bytes(self._up) + data)
            return
        try:
            sent = self.net.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._net_takes_no_more(error.strerror or str(error))
            return
        if sent < len(data):
            self._up = memoryview(data)[sent:]

    def _flush_up(self) -> None:
        data, self._up = self._up, _EMPTY
        self._send_up(data)

    def _wear_out(self) -> None:
        self._net_broke(f"{MOST >> 30} GiB are the most that one connection encrypts")

    # The end

    def _net_broke(self, why: str) -> None:
        """The network's end is dead, or not to be believed. What was decrypted before goes to the plain side."""
        self._net_ended = True
        self._net_takes_no_more(why)

    def _net_takes_no_more(self, why: str) -> None:
        """What the network's end has sent before is still to be read."""
        self._plain_ended = self._said_end = self._net_shut = True
        self._up = _EMPTY
        self.error = self.error or SessionLost(f"the connection broke: {why}")
        self._linger()

    def _plain_takes_no_more(self) -> None:
        """The plain side takes nothing more. What it has sent before still goes to the network."""
        self._discarding = self._plain_shut = True
        self._down = _EMPTY
        self._linger()

    def _linger(self) -> None:
        if self.due is None:
            self.due = self._owner.now() + LINGER_S

    def _settle(self) -> None:
        """Pass an end on once all bytes before it are sent; close after the second; else wait for what is next."""
        flows = not (self._net_ended or self._plain_ended or self._up or self._down)
        if self._closed or (flows and self._net_wanted == READ == self._plain_wanted):
            return
        if self._net_ended and not self._down and not self._plain_shut:
            self._plain_shut = True
            _shut(self._plain)
        # OpenSSL reads when it says that nothing follows, and accepts no data then: all that came is decrypted first.
        if self._plain_ended and not self._up and not self._down and not self._said_end:
            self._said_end = True
            self._tunnel.close()
            self._send_up(self._tunnel.outgoing())
        if self._said_end and not self._up and not self._net_shut:
            self._net_shut = True
            _shut(self.net)
        if self._net_ended and self._plain_ended and not self._up and not self._down:
            self.close()
        else:
            self._expect()

    def _expect(self) -> None:
        net = (0 if self._net_ended or self._down else READ) | (WRITE if self._up else 0)
        plain = (0 if self._plain_ended or self._up else READ) | (WRITE if self._down else 0)
        if net != self._net_wanted:
            self._net_wanted = net
            self._owner.expect(self.net.fileno(), net or NOTHING)
        if plain != self._plain_wanted:
            self._plain_wanted = plain
            self._owner.expect(self._plain.fileno(), plain or NOTHING)

    def close(self) -> None:
        """Close both sides at once. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for sock in (self.net, self._plain):
            self._owner.forget(sock.fileno())
            drain_and_close(sock)
        self._owner.ended(self)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it is closed already
