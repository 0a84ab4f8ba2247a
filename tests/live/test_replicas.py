"""Trackers of one lab on an etcd: the leader is killed, stopped and paused under load, and nobody notices."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import rpcsys
from rpcsys.errors import RpcsysError
from tests import etcd
from tests.live.daemons import Daemon, Daemons, free_port, wait_until
from tests.live.probe import SUMMARY, TrackerProbe
from tests.live.stored import rows

pytestmark = pytest.mark.open_lab("a closed lab has one tracker")
SOON_S = 60.0
LEASES = "SELECT lease, epoch, key, server, user, address, how, since, held_s, outcome FROM leases ORDER BY epoch"


class Replica:
    """One of the trackers, which can be started again at its port, with its state."""

    def __init__(self, daemons: Daemons, engine: etcd.Etcd, folder: Path) -> None:
        self.daemons, self.engine, self.state = daemons, engine, folder
        self.port, self.web = free_port(), free_port()
        self.start()

    def start(self, *flags: str) -> None:
        more = flags or ("--replicate", str(self.engine.place()), "--http-port", str(self.web))
        self.daemon: Daemon = self.daemons.tracker("--state-dir", str(self.state), *more, port=self.port)

    @property
    def leads(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web}/leader", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False


class Lab:
    """Trackers with a device server that follows them."""

    def __init__(self, daemons: Daemons, engine: etcd.Etcd, folder: Path, count: int) -> None:
        self.engine = engine
        self.replicas = [Replica(daemons, engine, folder / f"state{number}") for number in range(count)]
        self.where = ",".join(replica.daemon.where for replica in self.replicas)
        wait_until(lambda: self.leader, SOON_S, "a tracker leads")
        self.board = daemons.server("rpi4", "--tracker", self.where, "--slots", "2")
        self.wait_free(2)

    @property
    def leader(self) -> Replica | None:
        return next((replica for replica in self.replicas if replica.leads), None)

    def leads(self) -> Replica:
        return wait_until(lambda: self.leader, SOON_S, "a tracker leads")

    def leads_beside(self, earlier: Replica) -> None:
        """Wait until another one leads."""
        wait_until(lambda: self.leader not in (None, earlier), SOON_S, "the other leads")

    def standby(self) -> Replica:
        leader = self.leads()
        return next(replica for replica in self.replicas if replica is not leader)

    def wait_free(self, count: int) -> None:
        def free() -> bool:
            probe = TrackerProbe(self.leads().daemon.address)
            with closing(probe):
                return probe.ask([SUMMARY])[1]["queue_info"].get("rpi4", {}).get("free") == count

        wait_until(free, SOON_S, f"{count} free")

    def histories(self) -> list[list[Any]]:
        return [rows(replica.state, LEASES) for replica in self.replicas]


@pytest.fixture
def engine() -> Iterator[etcd.Etcd]:
    with etcd.running() as members:
        yield members


@pytest.fixture
def lab(engine: etcd.Etcd, daemons: Daemons, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(daemons, engine, tmp_path, 2)
    yield made
    for replica in made.replicas:  # what an idle one has depends on whether it leads, which `daemons` cannot know
        if replica.daemon.running():
            assert replica.daemon.terminate() == 0


@contextmanager
def load(lab: Lab) -> Iterator[list[str]]:
    """Clients that lease one device after another until the block ends: what each has run on, and what failed."""
    over = threading.Event()
    done: list[str] = []
    failed: list[str] = []

    def client() -> None:
        with rpcsys.connect_tracker(lab.where) as tracker:
            while not over.is_set():
                try:
                    with tracker.request("rpi4", session_timeout=30, wait_timeout=SOON_S) as session:
                        session.ping(30)
                        done.append(session.lease["lease"])
                except RpcsysError as error:
                    failed.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=client) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(done) > 5, SOON_S, "the load has begun")
        yield failed
        before = len(done)
        wait_until(lambda: len(done) > before + 5 or failed, SOON_S, "the load goes on")
    finally:
        over.set()
        for thread in threads:
            thread.join(2 * SOON_S)
    assert failed == []


def test_clients_notice_neither_kills_nor_stops_and_all_have_one_history(lab: Lab) -> None:
    with load(lab):
        for end in (Daemon.kill, Daemon.terminate):
            leader = lab.leads()
            end(leader.daemon)
            lab.leads_beside(leader)
            time.sleep(0.5)  # of load at the new leader
            leader.start()
    lab.wait_free(2)
    first, second = wait_until(
        lambda: (found := lab.histories())[0] == found[1] and found, SOON_S, "both have the same history"
    )
    assert len(first) > 10
    epochs = [row[1] for row in second]
    assert epochs == sorted(set(epochs)), "each lease has a number of its own"
    assert {row[9] for row in first} == {"closed"}


def test_a_paused_leader_says_nothing_when_it_wakes(lab: Lab) -> None:
    leader = lab.leads()
    witness = TrackerProbe(leader.daemon.address)
    assert witness.ask([SUMMARY])[0] == 0
    with load(lab):
        os.kill(leader.daemon.pid, signal.SIGSTOP)
        witness.send([4, "rpi4", "", 1])
        lab.leads_beside(leader)
        time.sleep(1.0)  # of load at the new leader
        os.kill(leader.daemon.pid, signal.SIGCONT)
        with pytest.raises((ConnectionError, EOFError, AssertionError)):
            witness.receive()
    assert not leader.leads
    assert "deposed" in leader.daemon.stderr()


def test_tvms_frames_are_relayed_by_any_tracker(lab: Lab) -> None:
    for _ in range(3):
        leader, standby = lab.leads(), lab.standby()
        probe = TrackerProbe(standby.daemon.address)
        with closing(probe):
            assert probe.lease("rpi4")[2].startswith("rpi4:")
        leader.daemon.kill()
        lab.leads_beside(leader)
        leader.start()


def test_one_tracker_goes_on_alone_without_the_engine(lab: Lab) -> None:
    with rpcsys.connect_tracker(lab.where) as tracker, tracker.request("rpi4", session_timeout=600) as session:
        lease = session.lease["lease"]
        leader, standby = lab.leads(), lab.standby()
        held = ("granted", lease)
        wait_until(lambda: held in {*rows(standby.state, "SELECT kind, about FROM present")}, SOON_S, "it is known")
        for replica in lab.replicas:
            replica.daemon.kill()
        leader.engine.members[0].kill()
        standby.start("--http-port", str(standby.web))
        with urllib.request.urlopen(f"http://127.0.0.1:{standby.web}/api/summary", timeout=10) as answer:
            summary = json.load(answer)
        assert [row["lease"] for row in summary["leases"]] == [lease]
        session.ping(10)
        standby.daemon.terminate()
    lab.engine.members[0].start()
    lab.engine.wait_healthy()


def test_without_a_majority_sessions_go_on_and_requests_wait(lab: Lab) -> None:
    with rpcsys.connect_tracker(lab.where) as tracker:
        sessions = [tracker.request("rpi4", session_timeout=600) for _ in range(2)]
        waiting = threading.Thread(target=lambda: tracker.request("rpi4", wait_timeout=2 * SOON_S).close())
        waiting.start()
        leader = lab.leads()
        engine = leader.engine
        engine.members[0].kill()
        wait_until(lambda: not leader.leads, SOON_S, "it leads no more")
        sessions[0].ping(10)
        engine.members[0].start()
        lab.leads()
        sessions[0].close()
        waiting.join(SOON_S)
        assert not waiting.is_alive()
        sessions[1].close()
