"""Our tracker as a closed lab runs it, and without a lab: its work and memory for connections inside TLS."""

from __future__ import annotations

import select
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers import memory_use, ours
from benchmarks.peers.subject import Once, Place, Trial
from benchmarks.peers.trackers import BOARD, DESK, PUT, Connection, TvmTracker, WholeFrames, free_port
from rpcsys.errors import RpcsysError
from rpcsys.link import credential, identity, tls
from rpcsys.link.credential import Credential
from rpcsys.link.link import Link
from rpcsys.secure_lab import LabCredentials
from rpcsys.wire import tokens

PING = 1
AGAIN_S = 0.2  # a board's first pause after its tracker is gone
BACK_S = 60.0


class OpenTracker(TvmTracker):
    """The tracker with state directory, metrics and a log line for each lease; whole frames, as our own links send."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.folder = place.folder / type(self).__name__
        self.folder.mkdir()
        self.fixed_port = free_port()

    def start(self) -> None:
        self.port = self.start_tracker()

    def start_tracker(self) -> int:
        """Start the tracker, once more after it was killed; its port."""
        ports = ("--port", str(self.fixed_port), "--port-end", str(self.fixed_port + 1))
        kept = ("--state-dir", str(self.folder / "state"), "--http-port", str(free_port()))
        command = ("-m", "rpcsys.tracker", "--host", "127.0.0.1", *ports, *kept, *self.flags())
        return self.start_server(command)

    def flags(self) -> tuple[str, ...]:
        """Those of its lab."""
        return ()

    def connection(self, member: str) -> Connection:
        return WholeFrames(self.port)

    def link(self, member: str) -> Link:
        """Our own connection of ``member``."""
        return Link(("127.0.0.1", self.port), user=member)

    def enrol(self, names: list[str]) -> None:
        """Make boards members."""

    @contextmanager
    def idle_connections(self, number: int) -> Iterator[Trial]:
        yield Once(lambda: self._bytes_of_each(number))

    @contextmanager
    def boards_back(self, number: int) -> Iterator[Trial]:
        yield Once(lambda: {"seconds": self._seconds_back(number)})

    def _bytes_of_each(self, number: int) -> dict[str, float]:
        """What an idle connection takes of a new tracker's memory."""
        self._new_tracker()
        with ExitStack() as stack:

            def connected(count: int) -> float:
                for _ in range(count):
                    stack.enter_context(closing(self.connection(DESK)))
                time.sleep(ours.SETTLED_S)
                return memory_use.used([self._servers[-1].pid])["bytes"]

            before = connected(number // 10)
            return {"bytes": (connected(number) - before) / number}

    def _seconds_back(self, number: int) -> float:
        """From the kill of the tracker until it knows as many boards as before, and their offers."""
        names = [f"board-{one}" for one in range(number)]
        self.enrol(names)
        boards = Boards(self, names)
        try:
            boards.run()
            self._servers[-1].kill()
            begin = time.perf_counter()
            boards.lost()
            self.start_tracker()
            boards.run()
            return time.perf_counter() - begin
        finally:
            boards.close()

    def _new_tracker(self) -> None:
        self._servers[-1].stop()
        self.start_tracker()


class ClosedTracker(OpenTracker):
    """The same in a lab: TLS, rules, audit log."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._credentials = LabCredentials(self.folder, "127.0.0.1", {BOARD: ours.KEY})
        self.fixed_port = self._credentials.port
        self._known = {name: credential.read(str(self._credentials.path(name))) for name in (DESK, BOARD)}

    def flags(self) -> tuple[str, ...]:
        return ("--lab", str(self._credentials.lab))

    def connection(self, member: str) -> Connection:
        return Member(self.port, self._known[member])

    def link(self, member: str) -> Link:
        return Link(("127.0.0.1", self.port), user=member, credential=self._known[member])

    def enrol(self, names: list[str]) -> None:
        if names[0] not in self._known:
            self._known |= alike(self._credentials.lab, self._known[BOARD], names)
            self._new_tracker()


class Member(WholeFrames):
    """A connection inside TLS."""

    def __init__(self, port: int, held: Credential) -> None:
        self._token = held.token
        self._pins = [pin.partition(":")[2] for pin in held.pins]
        super().__init__(port)

    def _greet(self) -> None:
        self.socket = tls.client_context().wrap_socket(self.socket)
        if identity.pin(self.socket.getpeercert(binary_form=True)) not in self._pins:
            raise ConnectionError("the peer is not the lab's tracker")
        super()._greet()
        self.send([PING, {"op": "hello", "version": "0", "token": self._token}])
        if not self.await_reply()["ok"]:
            raise ConnectionError("the tracker does not know the token")


class Boards:
    """Boards of one slot that connect, register and offer, again when the tracker is gone."""

    def __init__(self, subject: OpenTracker, names: list[str]) -> None:
        self._subject = subject
        self._names = names
        self._links: dict[str, Link] = {}
        self._by_number: dict[int, str] = {}
        self._poller = select.epoll()

    def run(self) -> None:
        """Go on until the tracker has answered every board's offer."""
        absent = dict.fromkeys(self._names, 0.0)  # when to connect
        offered: set[str] = set()
        deadline = time.monotonic() + BACK_S
        while len(offered) < len(self._names):
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"{len(offered)} of {len(self._names)} boards within {BACK_S:g} s")
            for name in [name for name, due in absent.items() if due <= now]:
                del absent[name]
                self._connect(name)
            for number, _ in self._poller.poll(0.01):
                name = self._by_number[number]
                try:
                    if self._advanced(name):
                        offered.add(name)
                except RpcsysError:
                    self._drop(name)
                    absent[name] = now + AGAIN_S

    def lost(self) -> None:
        """Forget all connections."""
        for name in [*self._links]:
            self._drop(name)

    def close(self) -> None:
        self.lost()
        self._poller.close()

    def _connect(self, name: str) -> None:
        link = self._links[name] = self._subject.link(name)
        self._by_number[link.fileno()] = name
        self._poller.register(link, select.EPOLLIN)

    def _drop(self, name: str) -> None:
        link = self._links.pop(name)
        self._poller.unregister(link)
        del self._by_number[link.fileno()]
        link.close()

    def _advanced(self, name: str) -> bool:
        """Do what a board can do now; whether its offer was answered."""
        link = self._links[name]
        ready = link.ready
        messages: list[Any] = link.advance()
        if link.ready and not ready:
            link.send({"op": "register", "id": 1, "key": ours.KEY, "name": name, "port": 9090})
            link.send([PUT, ours.KEY, [9090, f"{ours.KEY}:{name}"], None])
        return 0 in messages


def alike(lab: Path, board: Credential, names: list[str]) -> dict[str, Credential]:
    """Credentials of new boards with the keys and the secret of ``board``, written in one transaction."""
    secret = tokens.parse(board.token)
    found = {}
    with closing(sqlite3.connect(lab / "lab.sqlite")) as file, file:
        cursor = file.execute("SELECT * FROM members WHERE name = ?", (board.member,))
        columns = [column for column, *_ in cursor.description]
        row = dict(zip(columns, cursor.fetchone(), strict=True))
        for name in names:
            token = secret._replace(id=tokens.new_id())
            values = tuple({**row, "name": name, "token": token.id}.values())
            file.execute(f"INSERT INTO members VALUES ({', '.join('?' * len(values))})", values)
            found[name] = board._replace(member=name, token=token.text)
    return found
