"""Trackers of one lab on an etcd: a device server that follows them, and clients that lease from them."""

from __future__ import annotations

import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rpcsys
from rpcsys.errors import RpcsysError
from tests import etcd
from tests.live.daemons import Daemon, Daemons, free_port, wait_until
from tests.live.probe import SESSION_MAGIC, SessionProbe, TrackerProbe
from tests.live.stored import rows

SOON_S = 60.0
KEY = "rpi4"
LEASES = "SELECT lease, epoch, key, server, user, address, how, since, held_s, outcome FROM leases ORDER BY epoch"
_SOON_A_SNAPSHOT = """
import sys
from rpcsys.tracker import __main__
from rpcsys.tracker.replicas import replica, service
replica.SNAPSHOT_ENTRIES, service.SNAPSHOT_AFTER_S = int(sys.argv.pop(1)), 3.0
sys.exit(__main__.main())
"""


class Replica:
    """One of the trackers, which can be started again at its port, with its state.

    ``snapshot``: after how many entries of the journal it writes one, if not as usual.
    """

    host = "127.0.0.1"

    def __init__(
        self, daemons: Daemons, engine: etcd.Etcd, state: Path, snapshot: int | None = None, port: int = 0
    ) -> None:
        self.daemons, self.engine, self.state, self.snapshot = daemons, engine, state, snapshot
        self.port, self.web = port or free_port(), free_port()
        self.start()

    def start(self, *flags: str) -> None:
        """Start it; with ``flags``, as these say and not as a replica."""
        more = flags or ("--replicate", str(self.engine.place()), "--http-port", str(self.web))
        more = ("--state-dir", str(self.state), *more)
        if self.snapshot is None:
            self.daemon: Daemon = self.daemons.tracker(*more, port=self.port)
        else:
            command = (sys.executable, "-c", _SOON_A_SNAPSHOT, str(self.snapshot), "--host", "127.0.0.1")
            last = ("--port", str(self.port), "--port-end", str(self.port + 1))
            self.daemon = self.daemons.launch("tracker", (*command, *more, *last))
            self.daemon.await_ready_line()

    @property
    def leads(self) -> bool:
        """Whether it says that it leads; not while it is paused."""
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.web}/leader", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def present(self) -> set[tuple[str, str]]:
        """The facts that hold, by its file."""
        return {*rows(self.state, "SELECT kind, about FROM present")}


class ReplicatedLab:
    """Trackers, the first of which leads, and a device server of two slots that follows them."""

    def __init__(
        self, daemons: Daemons, engine: etcd.Etcd, folder: Path, count: int, snapshot: int | None = None
    ) -> None:
        self.daemons, self.engine, self.folder, self.snapshot = daemons, engine, folder, snapshot
        self.replicas: list[Replica] = []
        for _ in range(count):
            self.add()
            self.leads()
        self.serve()

    def serve(self) -> None:
        """Start the device server, once all trackers are there."""
        self.where = ",".join(replica.daemon.where for replica in self.replicas)
        self.board = self.daemons.server(KEY, "--tracker", self.where, "--slots", "2")
        self.wait_free(2)

    def add(self) -> Replica:
        """One more tracker; its folder may be there already."""
        state = self.folder / f"state{len(self.replicas)}"
        self.replicas.append(Replica(self.daemons, self.engine, state, self.snapshot))
        return self.replicas[-1]

    @property
    def leader(self) -> Replica | None:
        """Who leads; None: nobody at the moment."""
        return next((replica for replica in self.replicas if replica.leads), None)

    def leads(self) -> Replica:
        """Who leads, as soon as somebody does."""
        return wait_until(lambda: self.leader, SOON_S, "a tracker leads")

    def leads_beside(self, earlier: Replica) -> Replica:
        """The next leader, as soon as another one leads."""
        return wait_until(
            lambda: (found := self.leader) is not earlier and found, SOON_S, "another tracker leads than before"
        )

    def standby(self) -> Replica:
        """One that does not lead."""
        leader = self.leads()
        return next(replica for replica in self.replicas if replica is not leader)

    def wait_free(self, count: int) -> None:
        """Wait until the leader has so many slots free."""

        def free() -> bool:
            try:
                with TrackerProbe(self.leads().daemon.address) as probe:
                    return bool(probe.summary()["queue_info"].get(KEY, {}).get("free") == count)
            except (OSError, EOFError):
                return False  # it leads no more

        wait_until(free, SOON_S, f"{count} free")

    def wait_same_history(self, least: int) -> list[Any]:
        """The rows of ended leases once all files have the same, and at least so many."""

        def same() -> list[Any]:
            first, *others = [rows(replica.state, LEASES) for replica in self.replicas]
            return first if len(first) >= least and all(other == first for other in others) else []

        return wait_until(same, SOON_S, f"all files have the same history of {least} leases")

    def stop(self) -> None:
        """End the trackers: what an idle one has depends on whether it leads, which `Daemons` cannot know."""
        for replica in self.replicas:
            if replica.daemon.running():
                assert replica.daemon.terminate() == 0


@dataclass
class Leased:
    """What clients have leased since their load began, and what failed."""

    leases: list[str] = field(default_factory=list)
    match_keys: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def wait_more(self, count: int = 5) -> None:
        """Wait until so many more are leased."""
        least = len(self.match_keys) + count
        wait_until(lambda: self.failed or len(self.match_keys) >= least, SOON_S, f"{count} more leases")


@contextmanager
def load(lab: ReplicatedLab, clients: int = 3, frames_to: Replica | None = None) -> Iterator[Leased]:
    """Clients that lease one device after another until the block ends. AssertionError: one of them has failed.

    ``frames_to``: a client that speaks TVM's protocol is with this tracker, too.
    """
    leased, over = Leased(), threading.Event()
    work: list[Callable[[], None]] = [lambda: _ours(lab.where, leased, over)] * clients
    if frames_to is not None:
        work.append(lambda: _frames(frames_to.daemon.address, leased, over))
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    try:
        leased.wait_more()
        yield leased
        leased.wait_more()
    finally:
        over.set()
        for thread in threads:
            thread.join(2 * SOON_S)
    assert leased.failed == []
    assert len({*leased.match_keys}) == len(leased.match_keys), "a match key was given twice"


def _ours(where: str, leased: Leased, over: threading.Event) -> None:
    with rpcsys.connect_tracker(where) as tracker:
        while not over.is_set():
            try:
                with tracker.request(KEY, session_timeout=30, wait_timeout=SOON_S) as session:
                    session.ping(30)
                    leased.match_keys.append(session.lease["matchkey"])
                    leased.leases.append(session.lease["lease"])
            except RpcsysError as error:
                leased.failed.append(f"{type(error).__name__}: {error}")


def _frames(address: tuple[str, int], leased: Leased, over: threading.Event) -> None:
    """As TVM's client does it: who is cut off connects again, and asks again."""
    while not over.is_set():
        try:
            with TrackerProbe(address) as tracker:
                while not over.is_set():
                    host, port, match_key = tracker.lease(KEY)
                    leased.match_keys.append(match_key)
                    with SessionProbe((host, port), match_key) as session:
                        over.wait(0.0 if session.code == SESSION_MAGIC else 0.1)
        except (OSError, EOFError):
            over.wait(0.1)
        except AssertionError as error:
            leased.failed.append(f"the tracker's answer: {error}")
