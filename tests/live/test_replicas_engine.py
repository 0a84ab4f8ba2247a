"""Trackers whose etcd loses members: one is not noticed, without a majority requests wait, and one goes on alone."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import rpcsys
from tests import etcd
from tests.live.daemons import Daemons, wait_until
from tests.live.replicas import KEY, SOON_S, ReplicatedLab, load

pytestmark = pytest.mark.open_lab("a closed lab has one tracker")


@pytest.fixture
def lab(daemons: Daemons, tmp_path: Path) -> Iterator[ReplicatedLab]:
    """Two trackers, on an etcd of three members."""
    with etcd.running(3) as engine:
        made = ReplicatedLab(daemons, engine, tmp_path, 2)
        yield made
        made.stop()


@pytest.mark.parametrize("leads", [False, True])
def test_one_of_three_members_is_lost(lab: ReplicatedLab, leads: bool) -> None:
    first = lab.engine.leader()
    with load(lab) as leased:
        lab.engine.members[first if leads else (first + 1) % 3].kill()
        leased.wait_more(20)
    lab.wait_free(2)
    lab.wait_same_history(len(leased.leases))


def test_without_a_majority_sessions_go_on_and_requests_wait(lab: ReplicatedLab) -> None:
    with rpcsys.connect_tracker(lab.where) as tracker:
        sessions = [tracker.request(KEY, session_timeout=600) for _ in range(2)]
        granted, notes = threading.Event(), list[str]()

        def wait() -> None:
            note = lambda event: notes.append(event.get("note", ""))  # noqa: E731
            with tracker.request(KEY, wait_timeout=3 * SOON_S, on_queued=note):
                granted.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: tracker.summary()["queue_info"][KEY]["pending"], SOON_S, "it waits")
        leader = lab.leads()
        for member in lab.engine.members[:2]:
            member.kill()
        wait_until(lambda: not leader.leads, SOON_S, "it leads no more")
        for session in sessions:
            session.ping(30)
        sessions[0].close()
        assert not granted.wait(1.0), "nobody promises a lease that the journal does not have"
        wait_until(lambda: any("no etcd answers" in note for note in notes), SOON_S, "who waits is told why")
        lab.engine.heal()
        assert granted.wait(SOON_S)
        waiting.join(SOON_S)
        sessions[1].ping(30)
        sessions[1].close()
    lab.wait_free(2)
    lab.wait_same_history(3)


def test_one_tracker_goes_on_alone_without_the_engine(lab: ReplicatedLab) -> None:
    with rpcsys.connect_tracker(lab.where) as tracker, tracker.request(KEY, session_timeout=600) as session:
        lease, standby = session.lease["lease"], lab.standby()
        wait_until(lambda: ("granted", lease) in standby.present(), SOON_S, "it is known")
        for replica in lab.replicas:
            replica.daemon.kill()
        for member in lab.engine.members:
            member.kill()
        standby.start("--http-port", str(standby.web))
        with urllib.request.urlopen(f"http://127.0.0.1:{standby.web}/api/summary", timeout=30) as answer:
            summary = json.load(answer)
        assert [row["lease"] for row in summary["leases"]] == [lease]
        with rpcsys.connect_tracker(standby.daemon.where) as alone, alone.request(KEY, wait_timeout=SOON_S) as other:
            other.ping(30)
        session.ping(30)
