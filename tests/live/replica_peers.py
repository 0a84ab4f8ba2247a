"""Servers and clients of a replicated lab that note what they see: with links of ours, and by TVM's protocol.

The servers are simulated: a session is a handshake, and its end. Each runs in a thread, in the namespace in which it
was made. All clients of a kind are one user, so that only their arrival decides who is next.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rpcsys.client.waiting import Wanted, wait
from rpcsys.errors import RpcsysError
from rpcsys.link.link import CAPABILITIES, Link
from rpcsys.link.trackers import LeaderLink, Trackers
from rpcsys.wire.control import KEEPALIVE
from tests.live.networks import Namespace
from tests.live.probe import MISMATCH, PUT, SESSION_MAGIC, UPDATE_INFO, SessionProbe, TrackerProbe
from tests.live.replica_history import Asked, Event, Granted, History, Left, Lost, Offered, Queued, Taken, Withdrawn

KEY = "board"
OURS, TVMS = "ours", "tvm"
GET_PENDING = 7
USED_S = 5.0  # in which a match key that was taken is used
HOLD_S = 0.15  # of a lease, at most
LINK_S = 3.0  # of an opening
SILENT_S = 40.0  # how long TVM's ends wait for an answer: a paused leader may wake after 30 s
POLL_S = 1.0
TURN_S = 0.25
Address = tuple[str, int]


class Peer(threading.Thread):
    """A server or client that goes on until `over` is set. ``problem``: why it has ended before."""

    def __init__(self, name: str, history: History, addresses: Sequence[Address], place: Namespace) -> None:
        super().__init__(name=name, daemon=True)
        self.history, self.addresses, self._place = history, tuple(addresses), place
        self.over = threading.Event()
        self.problem: BaseException | None = None
        self.chance = random.Random(name)

    def run(self) -> None:
        try:
            with self._place.entered():
                while not self.over.is_set():
                    self.once()
        except BaseException as problem:
            self.problem = problem

    def once(self) -> None:
        """One connection, or one lease."""
        raise NotImplementedError

    def note(self, kind: type[Event], *details: Any) -> None:
        self.history.add(kind(time.monotonic(), *details))

    def stop(self) -> None:
        """AssertionError: it does not end. Raises what has ended it before."""
        self.over.set()
        self.join(2 * SILENT_S)
        assert not self.is_alive(), f"{self.name} hangs"
        if self.problem is not None:
            raise self.problem


# --- servers -----------------------------------------------------------------------------------


class Server(Peer):
    """A server of one slot at ``host``. ``key``: its match key; ``used``: that of its last session."""

    def __init__(self, name: str, history: History, addresses: Sequence[Address], place: Namespace, host: str) -> None:
        super().__init__(name, history, addresses, place)
        self.host = host
        with place.entered():
            self.listener = socket.create_server((host, 0))
        self.listener.settimeout(LINK_S)
        self.port = self.listener.getsockname()[1]
        self.key = self.used = ""
        self.session: socket.socket | None = None
        self._made = 0

    def offer(self) -> list[Any]:
        """A new match key, as it is to be offered."""
        self._made += 1
        self.key = f"{KEY}:{self.name}-{self._made}"
        self.note(Offered, self.key, self.known_as())
        return [PUT, KEY, [self.port, self.key], self.host]

    def known_as(self) -> str:
        """Its name in the trackers' history."""
        return self.name

    def withdraw(self) -> None:
        """Give up a match key that was not used."""
        if self.key:
            self.note(Withdrawn, self.key)
            self.key = ""

    def accept(self) -> bool:
        """Answer a client's handshake; whether its session begins."""
        connection, _ = self.listener.accept()
        connection.settimeout(LINK_S)
        try:
            head = connection.recv(8, socket.MSG_WAITALL)
            key = connection.recv(struct.unpack("<ii", head)[1], socket.MSG_WAITALL).decode()
            good = self.session is None and bool(self.key) and key == f"client:{self.key}"
            own = f"server:{KEY}".encode()
            connection.sendall(
                struct.pack("<ii", SESSION_MAGIC, len(own)) + own if good else struct.pack("<i", MISMATCH)
            )
        except (OSError, struct.error):
            good = False
        if good:
            self.session, self.used, self.key = connection, self.key, ""
        else:
            connection.close()
        return good

    def ready(self, *others: Any, within_s: float = TURN_S) -> list[Any]:
        """What of the listener, the session and ``others`` can be read."""
        mine = [self.listener] if self.session is None else [self.listener, self.session]
        return select.select([*mine, *others], [], [], within_s)[0]

    def end_session(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def stop(self) -> None:
        super().stop()
        self.end_session()
        self.listener.close()


class OurServer(Server):
    """A server of ours: with a link to the replicas, and told of each lease."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        self._trackers = Trackers(self.addresses)
        self._lease: dict[str, Any] | None = None  # taken, or in use
        self._taken_at = 0.0
        self._owed: list[dict[str, Any]] = []  # ends that no tracker knows

    def once(self) -> None:
        with suppress(RpcsysError, OSError), LeaderLink(self._trackers, timeout=LINK_S, **self._hello()) as link:
            self._serve(link)
        if self._lease is None:
            self.withdraw()  # and who has a session goes on with it
        self.over.wait(0.05)

    def _hello(self) -> dict[str, Any]:
        return {"capabilities": (*CAPABILITIES, KEEPALIVE), "user": self.name}

    def _serve(self, link: Link) -> None:
        registered = 0
        while not self.over.is_set():
            due = max(0.0, min(TURN_S, link.due - time.monotonic()))
            found = self.ready(link, within_s=due)
            for message in link.advance():
                if isinstance(message, dict) and message.get("id") == registered and "op" not in message:
                    assert message["ok"], message
                    self._offer_again(link)
                self._take(link, message)
            if link.ready and not registered:
                registered = link.next_id()
                link.send(self._registration(registered))
            self._sessions(link, found)

    def _registration(self, number: int) -> dict[str, Any]:
        running = [] if self._lease is None else [{**self._lease, "since_s": 0.1}]
        place = {"key": KEY, "name": self.name, "port": self.port, "address": self.host}
        return {"op": "register", "id": number, **place, "running": running}

    def _offer_again(self, link: Link) -> None:
        for report in self._owed:
            link.send({**report, "id": link.next_id()})
        if self._lease is None and self.session is None:
            link.send(self.offer())

    def _take(self, link: Link, message: Any) -> None:
        if not isinstance(message, dict) or "op" not in message:
            return
        if message["op"] == "taken" and message["matchkey"] in (self.key, self.used):
            lease = {"lease": message["lease"], "epoch": message["epoch"]}
            if lease != self._lease:
                assert self._lease is None, f"{self.name} has two holders"
                self.note(Taken, message["matchkey"], *lease.values(), link.tracker["term"])
                self._lease, self._taken_at = lease, time.monotonic()
                if message["matchkey"] == self.used and self.session is None:
                    self._report(link, "closed")  # its session came and went before this
        elif message["op"] == "end" and self._lease is not None and message["lease"] == self._lease["lease"]:
            self._end(link, "ended" if self.session else "unused")
        link.send({"id": message["id"], "ok": True})

    def _sessions(self, link: Link, found: list[Any]) -> None:
        if self.session in found and not self.session.recv(1):
            self._end(link, "closed")
        elif self.listener in found and self.accept() and self._lease is not None and link.ready:
            link.send({"op": "lease_started", "id": link.next_id(), **self._lease, "peer": "simulated"})
        unused = self._lease is not None and self.session is None
        if unused and time.monotonic() > self._taken_at + USED_S:
            self._end(link, "unused")

    def _end(self, link: Link, outcome: str) -> None:
        self.end_session()
        self.withdraw()
        if self._lease is not None:
            self._report(link, outcome)
        if link.ready:
            link.send(self.offer())

    def _report(self, link: Link, outcome: str) -> None:
        assert self._lease is not None
        report = {"op": "lease_ended", **self._lease, "outcome": outcome}
        self._lease, self._owed = None, [*self._owed[-9:], report]
        if link.ready:
            link.send({**report, "id": link.next_id()})


class TvmServer(Server):
    """A server that speaks TVM's protocol to one tracker at a time, and goes to any when that is lost."""

    def known_as(self) -> str:
        return f"{self.host}:{self.port}"

    def once(self) -> None:
        with suppress(OSError, EOFError), TrackerProbe(self.chance.choice(self.addresses), LINK_S) as tracker:
            tracker.socket.settimeout(LINK_S)
            assert tracker.ask([UPDATE_INFO, {"key": f"server:{KEY}", "addr": [self.host, self.port]}]) == 0
            while not self.over.is_set():
                self._serve(tracker)
        self.withdraw()
        self.over.wait(0.1)

    def _serve(self, tracker: TrackerProbe) -> None:
        """Offer a match key until its session is over, or it is not used."""
        assert tracker.ask(self.offer()) == 0
        taken_at = None
        poll_at = time.monotonic() + POLL_S
        while not self.over.is_set():
            now = time.monotonic()
            if taken_at is not None and now > taken_at + USED_S:
                self.withdraw()
                return
            if now > poll_at:
                poll_at = now + POLL_S
                pending = tracker.ask([GET_PENDING])
                taken_at = None if self.key in pending else (taken_at or now)
            found = self.ready(tracker.socket)
            if tracker.socket in found:
                raise EOFError  # TVM's tracker says nothing of itself
            if self.listener in found and self.accept():
                self._session()
                return

    def _session(self) -> None:
        while not self.over.is_set():
            if self.session in self.ready() and not self.session.recv(1):
                break
        self.end_session()


# --- clients -----------------------------------------------------------------------------------


class Client(Peer):
    """A client that leases one device after the other. ``queue``: see `Asked`."""

    queue = ""
    _asked = 0

    def ask(self) -> str:
        """The name of its next request."""
        self._asked += 1
        request = f"{self.name}-{self._asked}"
        self.note(Asked, request, self.queue)
        return request

    def use(self, place: Address, match_key: str) -> bool:
        """Open a session, and close it; False: the server did not let it in."""
        try:
            with SessionProbe(place, match_key, timeout_s=LINK_S) as session:
                if session.code != SESSION_MAGIC:
                    return False
                self.over.wait(self.chance.random() * HOLD_S)
                return True
        except (OSError, EOFError):
            return False


class OurClient(Client):
    """A client of ours: its place in the queue is kept."""

    queue = OURS

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        self._trackers = Trackers(self.addresses)
        self._link: Link | None = None

    def _open(self, timeout: float) -> Link:
        return LeaderLink.open(self._trackers, timeout=timeout, user="ours")  # type: ignore[arg-type]

    def once(self) -> None:
        try:
            link = self._link or self._open(LINK_S)
        except (RpcsysError, OSError):
            self.over.wait(0.1)
            return
        self._link, request = None, self.ask()

        def reopen(timeout: float) -> Link:
            self.note(Lost, request)
            return self._open(timeout)

        wanted = Wanted(KEY, {}, 1, 1.0, None, True)
        try:
            link, (lease,) = wait(link, wanted, None, lambda event: self.note(Queued, request, event["ticket"]), reopen)
        except (RpcsysError, OSError):
            self.note(Left, request)
            return
        self.note(Granted, request, lease["matchkey"], lease["lease"], lease["epoch"], link.tracker["term"])
        try:
            if not self.use((lease["host"], lease["port"]), lease["matchkey"]):
                link.ask("release", timeout=LINK_S, lease=lease["lease"], problem="")
            self._link = link
        except RpcsysError:
            link.close()

    def stop(self) -> None:
        super().stop()
        if self._link is not None:
            self._link.close()
        self._trackers.close()


class TvmClient(Client):
    """As TVM's client does it, which knows one tracker at a time and has no ticket."""

    queue = TVMS

    def once(self) -> None:
        request = ""
        try:
            with TrackerProbe(self.chance.choice(self.addresses), LINK_S) as tracker:
                tracker.socket.settimeout(SILENT_S)
                while not self.over.is_set():
                    request = self.ask()
                    host, port, match_key = tracker.lease(KEY)
                    self.note(Granted, request, match_key)
                    request = ""
                    self.use((host, port), match_key)
        except (OSError, EOFError):
            if request:
                self.note(Left, request)
            self.over.wait(0.1)


class Load:
    """Servers and clients of both kinds, outside the hosts at ``host``."""

    def __init__(self, history: History, addresses: Sequence[Address], place: Namespace, host: str) -> None:
        where = history, addresses, place
        self.servers = [OurServer("our1", *where, host), OurServer("our2", *where, host)]
        self.servers += [TvmServer("tvm1", *where, host), TvmServer("tvm2", *where, host)]
        clients = [OurClient(f"ours{number}", *where) for number in range(5)]
        self.clients: list[Client] = [*clients, *(TvmClient(f"tvms{number}", *where) for number in range(3))]

    def start(self) -> None:
        for peer in (*self.servers, *self.clients):
            peer.start()

    def stop(self) -> None:
        """End the clients, then the servers. Raises what one of them has met."""
        for peer in self.clients:
            peer.over.set()
        for peer in (*self.clients, *self.servers):
            peer.stop()
