"""A closed lab at work: members that lease, and boards that serve them, each with a credential file of its own.

Most of them speak to the tracker alone, over the package's own links: two cores have no room for 50 servers. A board of
these says that a session began and ended; nobody connects to it.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rpcsys.errors import NoTls, RpcsysError, TrackerLost, TrackerUnreachable
from rpcsys.link import credential
from rpcsys.link.link import Link
from rpcsys.wire import pinned_keys, tracker
from tests.live.labs import LabOnDisk

KEY = "work"
WAIT_S = 60.0
PAUSE_S = 0.1
SHIFT = 5  # leases over one connection
END_S = 60.0
GONE = (TrackerLost, TrackerUnreachable, NoTls)  # NoTls: it was killed in the middle of a handshake


class BusyLab:
    """``failed``: each failed request, as text. ``away``: whether the tracker is, so that nobody can reach it."""

    def __init__(self, lab: LabOnDisk, members: int, boards: int) -> None:
        self.failed: list[str] = []
        self.done: collections.Counter[str] = collections.Counter()
        self.away = False
        self.files: list[Path] = []
        self._address = ("127.0.0.1", lab.port)
        self._stop, self._leave = threading.Event(), threading.Event()
        self._members = [self._employ(lab, f"member-{number}", self._lease) for number in range(members)]
        self._boards = [self._employ(lab, f"board-{number}", self._serve, KEY) for number in range(boards)]

    def _employ(self, lab: LabOnDisk, name: str, work: Callable[[Link, str], None], *keys: str) -> threading.Thread:
        file = lab.path.parent / "held" / f"{name}.json"
        credential.write(str(file), lab.board(name, keys) if keys else lab.join(name))
        self.files.append(file)
        return threading.Thread(target=self._work, args=(work, name, file), daemon=True)

    def start(self) -> None:
        for thread in (*self._members, *self._boards):
            thread.start()

    def stop(self) -> None:
        """AssertionError if one of them hangs."""
        for over, threads in ((self._stop, self._members), (self._leave, self._boards)):  # a member waits for a board
            over.set()
            for thread in threads:
                thread.join(END_S)
            assert not any(thread.is_alive() for thread in threads)

    def _work(self, work: Callable[[Link, str], None], name: str, file: Path) -> None:
        over = self._leave if work == self._serve else self._stop
        while not over.is_set():
            try:
                held = credential.read(str(file))
                with Link.open(self._address, credential=held, timeout=WAIT_S) as link:
                    work(link, name)
            except RpcsysError as error:
                # The tracker ends boards' connections so that they take what is new, and never members': at any
                # moment, before its answer to their hello has been read, too.
                told = work == self._serve and isinstance(error, TrackerLost)
                if not (told or (self.away and isinstance(error, GONE))):
                    self.failed.append(f"{name}: {type(error).__name__}: {error}")
            over.wait(PAUSE_S)

    def _lease(self, link: Link, name: str) -> None:
        for _ in range(SHIFT):
            asked = {"key": KEY, "wait_timeout": WAIT_S, "wait_for_key": True}
            (lease,) = link.ask("request", timeout=WAIT_S, **asked)["leases"]
            assert pinned_keys.parse(lease["matchkey"]), "a lab's sessions are encrypted"
            self.done["leases"] += 1
            if self._stop.wait(PAUSE_S):
                return

    def _serve(self, link: Link, name: str) -> None:
        link.ask("register", timeout=WAIT_S, key=KEY, name=name, port=9090, identity=name)
        _offer(link)
        while not self._leave.is_set():
            try:
                message = link.receive(PAUSE_S)
            except TimeoutError:
                continue
            if not isinstance(message, dict) or "op" not in message:
                assert message == 0 or message["ok"], message  # of a PUT, or of a report
                continue
            link.send({"id": message["id"], "ok": True})
            if message["op"] == "taken":
                about = {"lease": message["lease"], "epoch": message["epoch"]}
                link.send({"op": "lease_started", "id": link.next_id(), "peer": "simulated", **about})
                time.sleep(0.01)
                link.send({"op": "lease_ended", "id": link.next_id(), "outcome": "closed", **about})
                _offer(link)


def _offer(link: Link) -> None:
    link.send([tracker.PUT, KEY, [9090, pinned_keys.new(KEY, f"{time.monotonic_ns():064x}").text], None])


class Calls:
    """Sessions, one after the other, and ``calls`` calls in each, in ``count`` threads. ``away``: as in `BusyLab`."""

    def __init__(self, opened: Callable[[], Any], count: int, calls: int) -> None:
        self.failed: list[str] = []
        self.done = 0
        self.away = False
        self._opened, self._calls = opened, calls
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        payload = bytes(range(256)) * 100
        while not self._stop.is_set():
            try:
                with self._opened() as session:
                    echo = session.get_function("testing.echo")
                    for number in range(self._calls):
                        assert echo(number) == number
                        assert echo(payload) == payload
                        self.done += 2
                        if self._stop.wait(0.02):
                            return
            except Exception as error:
                if not (self.away and isinstance(error, GONE)):
                    self.failed.append(f"{type(error).__name__}: {error}")
                self._stop.wait(PAUSE_S)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(END_S)
        assert not any(thread.is_alive() for thread in self._threads)
