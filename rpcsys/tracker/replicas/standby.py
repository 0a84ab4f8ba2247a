"""Who comes to a tracker that does not lead: those that know what a standby is look out for the leader here; all others
are relayed to it, and notice nothing.

A *lookout* is a connection that is told who leads, and says nothing more. There are many, so each costs little.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rpcsys.daemon.acceptor import raise_descriptor_limit
from rpcsys.daemon.sockets import Sockets
from rpcsys.errors import ProtocolError
from rpcsys.link.admission import ANY, Admission
from rpcsys.tracker import accepting
from rpcsys.tracker.accepting import Place
from rpcsys.tracker.addresses import ProxyNetworks
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.connection import RECEIVED, PeerConnection
from rpcsys.tracker.peer_limit import PeerLimit
from rpcsys.tracker.peers import welcome
from rpcsys.tracker.replicas.relays import KEPT, Address, Adopt, Relays, WaitingPeer, in_turns
from rpcsys.tracker.views.metrics import FrameCounts
from rpcsys.wire.control import KEEPALIVE, Via
from rpcsys.wire.replicas import REPLICAS, STANDBY, Leads
from rpcsys.wire.tracker import Ping, ToTracker, decode_json, encode, parse_to_tracker

log = logging.getLogger(__name__)
SWEEP_S = 1.0  # how often connections are checked for silence
_GREETED = 1  # the number of connections whose magic was answered
_LENGTH_BYTES = 4


class Comer(enum.Enum):
    """Who has come, by the first frame."""

    LOOKOUT = enum.auto()
    RELAYED = enum.auto()
    STANDBY = enum.auto()  # it relays to us, and we do not lead


def message_in(frame: bytes) -> ToTracker | None:
    """The message in a frame; None: there is none, which is for the leader to say."""
    try:
        return parse_to_tracker(decode_json(frame))
    except ProtocolError:
        return None


def comer(message: ToTracker | None) -> Comer:
    """Who says this first."""
    if isinstance(message, Ping) and message.hello is not None and REPLICAS in message.hello.capabilities:
        return Comer.LOOKOUT
    return Comer.STANDBY if isinstance(message, Via) and message.proxy is None else Comer.RELAYED


def serves(message: ToTracker | None) -> bool:
    """Whether one of our servers says this first: these alone answer heartbeats."""
    return isinstance(message, Ping) and message.hello is not None and KEEPALIVE in message.hello.capabilities


@dataclass(eq=False, slots=True)
class Lookout:
    """A connection that is told who leads. ``serves``: it is a server's; those of clients are told first."""

    standby: Standby
    sock: socket.socket
    place: Place
    serves: bool

    def ready(self, _found: int) -> None:
        """End: its peer has ended it, or says something, which no lookout does."""
        self.standby.drop(self)


class Standby:
    """A tracker that does not lead, made inside its event loop. It owns connections before their first frame.

    ``leader``: who leads, None for nobody; ``term``: the highest that is known. Metrics count ``lookouts``,
    ``relays.pairs`` and ``relays.waiting``.
    """

    holds: Callable[[PeerConnection, bytes], bool] | None = None
    max_frame = KEPT - RECEIVED  # so that a first frame, and what is read with it, are not more than is kept

    def __init__(self, config: TrackerConfig) -> None:
        self.loop = asyncio.get_running_loop()
        self.lab = None  # of a closed one, connections inside TLS are relayed as they are
        self.leader: Address | None = None
        self.term = 0
        self.why_none = ""  # why it may be that nobody leads, for those who come
        self.lookouts: dict[Lookout, None] = {}
        self.open_connections: dict[PeerConnection, None] = {}
        self.heard: tuple[list[PeerConnection], list[PeerConnection]] = ([], [])
        self.unsent: list[PeerConnection] = []
        self.counts = FrameCounts(self.open_connections)
        self.sockets = Sockets(self._turn)
        self.served = Admission((ANY,) if config.lab else config.admit)
        most = min(config.max_connections_per_address, raise_descriptor_limit() // 2)
        self.admission = PeerLimit(most, ProxyNetworks.of(config.proxy_from), self.loop.time)
        self.relays = Relays(self.sockets, self.admission.leave)
        self._closed_lab = config.lab is not None
        self._adopt: Adopt | None = None  # while this tracker leads
        self._telling: asyncio.Task[None] | None = None
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def accept(self, sock: socket.socket, address: Any) -> None:
        """Admit or close a connection that has just been accepted."""
        accepting.accept(self, sock, address)

    # Who leads.

    def follow(self, leader: Address | None, term: int) -> None:
        """Note who leads now, None for nobody: lookouts are told, relays to another leader are cut."""
        if leader is not None and term < self.term:
            return  # it is deposed, and does not know yet
        term = max(term, self.term)
        if (leader, term) == (self.leader, self.term) and self._adopt is None:
            return
        self.leader, self.term, self._adopt = leader, term, None
        self.relays.follow(leader)
        frame = encode(Leads(self.term, self.leader))
        self._begin(in_turns(lambda lookout: self._tell(lookout, frame), self._clients_first()))

    def give_over(self, leader: Address, term: int, adopt: Adopt) -> None:
        """This tracker itself leads now, at ``leader``: ``adopt`` gets all connections but those that were relayed."""
        self.leader, self.term, self._adopt = leader, term, adopt
        self.relays.follow(None)
        self._begin(self._give_over(adopt))

    def close(self) -> None:
        """End all connections."""
        self._sweeper.cancel()
        if self._telling is not None:
            self._telling.cancel()
        self.relays.close()
        for lookout in [*self.lookouts]:
            self.drop(lookout)
        for connection in [*self.open_connections]:
            connection.close()
        self.sockets.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in place of what is under way."""
        if self._telling is not None:
            self._telling.cancel()
        self._telling = self.loop.create_task(work)

    async def _give_over(self, adopt: Adopt) -> None:
        await in_turns(self._let_go, self.open_connections)
        await self.relays.hand_over(adopt)
        frame = encode(Leads(self.term, self.leader, True))
        await in_turns(lambda lookout: self._hand_over(lookout, frame, adopt), self._clients_first())

    # Connections before their first frame: what `PeerConnection` needs of its owner.

    def greeted(self, connection: PeerConnection) -> int:
        """The number of a connection whose magic was answered."""
        return _GREETED

    def encrypted(self, connection: PeerConnection) -> None:
        """Relay what begins with TLS, of which nothing can be read here."""
        self._let_go(connection)

    def received(self, connection: PeerConnection, frame: bytes) -> None:
        """Handle the first frame, which decides what becomes of a connection."""
        message = message_in(frame)
        if connection.refusal:
            accepting.refuse(connection, message, "Forbidden", connection.refusal)
            return
        came = comer(message)
        if came is Comer.STANDBY:
            connection.drop("a standby relays it, and this tracker does not lead")
        elif came is Comer.LOOKOUT and self._adopt is None and not self._closed_lab:
            self._look_out(connection, serves(message))
        else:
            self._let_go(connection, len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)

    def flush(self) -> None:
        """Send what is unsent on all connections."""
        while self.unsent:
            self.unsent.pop().flush()

    def lost(self, connection: PeerConnection) -> None:
        """Do nothing: nobody has heard of a connection before its first frame."""

    def _turn(self) -> None:
        (heard, _), self.heard = self.heard, ([], [])
        for connection in heard:
            connection.work()
        self.flush()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in [*self.open_connections]:
            connection.end_if_silent(now)
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def _let_go(self, connection: PeerConnection, first: bytes = b"") -> None:
        """Relay a connection that has said ``first``, or give it over if this tracker leads."""
        released = None if connection.refusal else connection.release()
        if released is None:
            return
        sock, rest = released
        peer = WaitingPeer(sock, (connection.address, connection.local), first + rest, connection.number == _GREETED)
        if self._adopt is None:
            self.relays.take(peer)
        else:
            self.admission.leave(*peer.place)
            self._adopt(sock, peer.place, peer.received, peer.greeted)

    # Lookouts.

    def _clients_first(self) -> list[Lookout]:
        """All lookouts. Thousands of servers take seconds to register; those who wait need not wait for all of them."""
        return sorted(self.lookouts, key=attrgetter("serves"))

    def _look_out(self, connection: PeerConnection, serves: bool) -> None:
        why = {"why": self.why_none} if self.why_none else {}
        connection.send({**welcome(), "role": STANDBY, "leader": self.leader, "term": self.term, **why})
        released = connection.release()
        if released is None:
            return
        sock, rest = released
        lookout = Lookout(self, sock, (connection.address, connection.local), serves)
        self.lookouts[lookout] = None
        try:
            self.sockets.add(sock.fileno(), lookout.ready)
        except OSError:  # the kernel cannot watch another descriptor
            self.drop(lookout)
        if rest:
            self.drop(lookout)

    def drop(self, lookout: Lookout) -> None:
        """End a lookout."""
        if lookout in self.lookouts:
            self._forget(lookout)
            lookout.sock.close()

    def _forget(self, lookout: Lookout) -> None:
        del self.lookouts[lookout]
        self.sockets.remove(lookout.sock.fileno())
        self.admission.leave(*lookout.place)

    def _tell(self, lookout: Lookout, frame: bytes) -> bool:
        """Tell a lookout; whether it is there. One that does not read what it is told ends."""
        if lookout not in self.lookouts:
            return False
        try:
            if lookout.sock.send(frame) == len(frame):
                return True
        except OSError:
            pass
        self.drop(lookout)
        return False

    def _hand_over(self, lookout: Lookout, frame: bytes, adopt: Adopt) -> None:
        if self._tell(lookout, frame):
            self._forget(lookout)
            adopt(lookout.sock, lookout.place, b"", False)
