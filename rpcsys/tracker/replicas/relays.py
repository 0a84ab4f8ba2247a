"""Connections that a standby relays to the leader: they wait while nobody leads, then each is joined with one there.

The leader answers the magic before anything is passed on, so a leader that hangs gets nothing. A peer that has gone by
then leaves nothing there either: its request would take a device, or the place of a client that lives.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from rpcsys.daemon.dialling import dial, take_magic
from rpcsys.daemon.relay import Pair, Relay
from rpcsys.daemon.sockets import ENDED, Sockets
from rpcsys.link.backoff import Backoff, jitter
from rpcsys.tracker.accepting import Place
from rpcsys.tracker.addresses import is_loopback
from rpcsys.wire.control import Via
from rpcsys.wire.tracker import MAGIC_BYTES, encode

log = logging.getLogger(__name__)
Address = tuple[str, int]
#: Takes a connection: the socket, its place, what its peer has said, and whether its magic was answered.
Adopt = Callable[[socket.socket, Place, bytes, bool], None]
Item = TypeVar("Item")

DIALS = 32  # connections to the leader that are made at once
PAUSES_S = (0.05, 2.0)  # first and longest pause after a connection to the leader failed
KEPT = 64 << 10  # bytes that are kept for a peer that waits, at most
KEPT_ALL = 64 << 20  # for all of them together
TURN = 128  # items of many that are handled before the loop goes on with other work
#: That work takes a turn of the loop, or as many as it has much to do in, up to so many.
SHORT_TURN_S, MOST_TURNS = 0.002, 32


async def in_turns(do: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Do it with each of many items. Between some and the next, the loop does the other work that it has by then."""
    for number, item in enumerate([*items], 1):
        do(item)
        if number % TURN == 0:
            await _other_work()


async def _other_work() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(MOST_TURNS):
        begun = loop.time()
        await asyncio.sleep(0)
        if loop.time() - begun < SHORT_TURN_S:
            return


@dataclass(eq=False, slots=True)
class WaitingPeer:
    """A peer that is to be relayed. ``received``: what it has said; nothing more is read. ``greeted``: see `Adopt`."""

    sock: socket.socket
    place: Place
    received: bytes
    greeted: bool

    def port(self) -> int | None:
        """The peer's port; None if the peer has closed the connection, whatever it has sent before."""
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        try:
            return None if poll.poll(0) else int(self.sock.getpeername()[1])
        except OSError:
            return None


class Relays:
    """The peers that wait for a leader, and those that are joined with it. To be made inside the event loop.

    ``left`` is called with the place of each that has ended. ``kept``: the bytes that are kept for those that wait.
    """

    def __init__(self, sockets: Sockets, left: Callable[[str, str], None]) -> None:
        self.waiting: dict[WaitingPeer, None] = {}
        self.pairs: dict[Pair, Place] = {}
        self.kept = 0
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._left = left
        self._relay = Relay(sockets)
        self._leader: Address | None = None
        self._dialling: set[asyncio.Task[None] | None] = set()
        self._cutting: asyncio.Task[None] | None = None
        self._failed = False  # whether the last connection to the leader could not be made

    def take(self, peer: WaitingPeer) -> None:
        """Relay a peer to the leader, as soon as there is one."""
        if self.kept + len(peer.received) > KEPT_ALL:
            text, stranger = "%s is not relayed: too many wait for a leader", {"stranger": peer.place[0]}
            log.warning(text, peer.place[0], extra=stranger)
            self._close(peer)
            return
        try:
            self._sockets.add(peer.sock.fileno(), lambda _: self._gone(peer), ENDED)
        except OSError:  # the kernel cannot watch another descriptor
            self._close(peer)
            return
        self.waiting[peer] = None
        self.kept += len(peer.received)
        self._dial()

    def follow(self, leader: Address | None) -> None:
        """Relay to ``leader`` from now on; None: nobody leads. What is relayed so far is cut."""
        self._leader, self._failed = leader, False
        self._stop()
        self._cutting = self._loop.create_task(in_turns(Pair.close, self.pairs))
        self._dial()

    async def hand_over(self, adopt: Adopt) -> None:
        """Give away the peers that wait and live."""
        await in_turns(lambda peer: self._hand_over(peer, adopt), self.waiting)

    def close(self) -> None:
        """End all connections."""
        self._leader = None
        self._stop()
        for peer in [*self.waiting]:
            self._gone(peer)
        for pair in [*self.pairs]:
            pair.close()

    # Peers that wait.

    def _forget(self, peer: WaitingPeer) -> None:
        del self.waiting[peer]
        self.kept -= len(peer.received)
        self._sockets.remove(peer.sock.fileno())

    def _gone(self, peer: WaitingPeer) -> None:
        self._forget(peer)
        self._close(peer)

    def _close(self, peer: WaitingPeer) -> None:
        peer.sock.close()
        self._left(*peer.place)

    def _hand_over(self, peer: WaitingPeer, adopt: Adopt) -> None:
        if peer not in self.waiting:
            return
        if peer.port() is None:
            self._gone(peer)
            return
        self._forget(peer)
        self._left(*peer.place)
        adopt(peer.sock, peer.place, peer.received, peer.greeted)

    # Connections to the leader.

    def _dial(self) -> None:
        """Make connections for those that wait: each is for the one that has waited longest when it is there."""
        while self._leader is not None and len(self._dialling) < min(DIALS, len(self.waiting)):
            self._dialling.add(self._loop.create_task(self._join_all(self._leader, self._dialling)))

    def _stop(self) -> None:
        dialling, self._dialling = self._dialling, set()
        for task in (*dialling, self._cutting):
            if task is not None:
                task.cancel()

    async def _join_all(self, leader: Address, dialling: set[asyncio.Task[None] | None]) -> None:
        """Join one peer after the other with the leader, until none waits. This task is one of ``dialling``."""
        backoff, this = Backoff(*PAUSES_S), asyncio.current_task()
        try:
            while self.waiting:
                try:
                    sock = await _greeted_by(leader)
                except OSError as error:
                    self._note_failure(leader, error)
                    await asyncio.sleep(backoff.pause(jitter()))
                else:
                    self._failed = False
                    backoff.worked()
                    self._join(sock)
        finally:  # at once, so that another one is begun for the next that comes
            dialling.discard(this)

    def _note_failure(self, leader: Address, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            log.warning("cannot relay to the leader at %s:%d: %s", *leader, error.strerror or error)

    def _join(self, sock: socket.socket) -> None:
        """Join the first peer that is still there with a connection to the leader."""
        while self.waiting:
            peer = next(iter(self.waiting))
            port = peer.port()
            if port is None:
                self._gone(peer)
                continue
            self._forget(peer)
            via = encode(Via((_seen_from(sock, peer.place[0]), port), None))
            pair = Pair(self._relay, peer.sock, sock, self._ended, prompt=True)
            self.pairs[pair] = peer.place
            pair.start(via + peer.received)
            return
        sock.close()

    def _ended(self, pair: Pair) -> None:
        self._left(*self.pairs.pop(pair))


async def _greeted_by(leader: Address) -> socket.socket:
    """A connection to a leader that has answered the magic. Raises OSError."""
    sock = await dial(*leader)
    try:
        await asyncio.get_running_loop().sock_sendall(sock, MAGIC_BYTES)
        await take_magic(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _seen_from(sock: socket.socket, address: str) -> str:
    """The address of a peer for the other end of ``sock``: one on this machine has this machine's address."""
    return str(sock.getsockname()[0]) if is_loopback(address) else address
