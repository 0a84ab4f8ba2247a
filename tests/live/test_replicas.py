"""Trackers of one lab on an etcd: the leader is killed, stopped and paused under load, and nobody notices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rpcsys
from rpcsys.errors import RpcsysError
from tests import etcd
from tests.live.daemons import Daemon, Daemons, free_port, wait_until
from tests.live.probe import TrackerProbe
from tests.live.replicas import KEY, SOON_S, Replica, ReplicatedLab, load

pytestmark = pytest.mark.open_lab("a closed lab has one tracker")
MakeLab = Callable[..., ReplicatedLab]


@pytest.fixture
def make_lab(daemons: Daemons, tmp_path: Path) -> Iterator[MakeLab]:
    """Makes the lab of a test, on a new etcd."""
    made: list[ReplicatedLab] = []
    with etcd.running() as engine:

        def make(count: int = 2, snapshot: int | None = None) -> ReplicatedLab:
            made.append(ReplicatedLab(daemons, engine, tmp_path, count, snapshot))
            return made[-1]

        yield make
        for lab in made:
            lab.stop()


@pytest.fixture
def lab(make_lab: MakeLab) -> ReplicatedLab:
    """Two trackers."""
    return make_lab()


def history(where: str) -> list[Any]:
    """What the leader says of the past."""
    with rpcsys.connect_tracker(where) as tracker:
        return [*tracker.history(limit=None)]


def ended(session: rpcsys.Session) -> bool:
    """Whether it answers no more."""
    try:
        session.ping(30)
    except RpcsysError:
        return True
    return False


# --- the leader's end --------------------------------------------------------------------------


def test_clients_notice_neither_kills_nor_stops_and_all_have_one_history(lab: ReplicatedLab) -> None:
    with load(lab) as leased:
        for end in (Daemon.kill, Daemon.terminate):
            leader = lab.leads()
            end(leader.daemon)
            lab.leads_beside(leader)
            leased.wait_more()
            leader.start()
    lab.wait_free(2)
    kept = lab.wait_same_history(len(leased.leases))
    epochs = [row[1] for row in kept]
    assert len({*epochs}) == len(epochs), "each lease has a number of its own"
    assert {*leased.leases} <= {row[0] for row in kept}
    assert {row[9] for row in kept} == {"closed"}
    leader, told = lab.leads(), history(lab.where)
    assert len(told) == len(kept)
    leader.daemon.terminate()
    lab.leads_beside(leader)
    assert history(lab.where) == told


def test_a_paused_leader_says_nothing_when_it_wakes(lab: ReplicatedLab) -> None:
    leader = lab.leads()
    probe = partial(TrackerProbe, leader.daemon.address)
    with probe() as board, probe() as witness, load(lab) as leased:
        assert board.ask([3, "witness", [9090, "witness:1"], None]) == 0
        os.kill(leader.daemon.pid, signal.SIGSTOP)
        witness.send([4, "witness", "", 1])  # it has a device for it
        lab.leads_beside(leader)
        leased.wait_more()
        os.kill(leader.daemon.pid, signal.SIGCONT)
        with pytest.raises((ConnectionError, EOFError)):
            witness.read(1)
        leased.wait_more()
    assert not leader.leads
    assert "deposed" in leader.daemon.stderr()
    with probe() as relayed:  # it follows
        assert relayed.lease(KEY)[2].startswith(f"{KEY}:")


def test_trackers_are_restarted_one_by_one_under_load(make_lab: MakeLab) -> None:
    lab = make_lab(3)
    leader = lab.leads()
    standbys = [replica for replica in lab.replicas if replica is not leader]
    with load(lab) as leased:
        for replica in (*standbys, leader):
            assert replica.daemon.terminate() == 0
            leased.wait_more()
            replica.start()
            leased.wait_more()
    lab.wait_free(2)
    lab.wait_same_history(len(leased.leases))


# --- TVM's ends --------------------------------------------------------------------------------


def test_tvms_frames_are_relayed_by_any_tracker(lab: ReplicatedLab) -> None:
    standby = lab.standby()
    with load(lab, clients=2, frames_to=standby) as leased:
        for _ in range(3):  # through a standby, at the leader itself, through a standby again
            leader = lab.leads()
            if leader is not standby:
                leader.daemon.kill()
            else:
                os.kill(leader.daemon.pid, signal.SIGSTOP)
            lab.leads_beside(leader)
            if leader is standby:
                os.kill(leader.daemon.pid, signal.SIGCONT)
            else:
                leader.start()
            leased.wait_more()


def change(lab: ReplicatedLab, through: Replica) -> None:
    """Another tracker leads: the one before is killed; the one ``through`` which TVM's ends go is paused instead."""
    leader = lab.leads()
    if leader is through:
        os.kill(leader.daemon.pid, signal.SIGSTOP)
        lab.leads_beside(leader)
        os.kill(leader.daemon.pid, signal.SIGCONT)
    else:
        leader.daemon.kill()
        lab.leads_beside(leader)
        leader.start()


@pytest.mark.parametrize("leads", [False, True], ids=["that never leads", "that leads, too"])
def test_tvms_server_and_client_go_on_through_one_tracker(make_lab: MakeLab, daemons: Daemons, leads: bool) -> None:
    rpc = pytest.importorskip("tvm.rpc")
    lab = make_lab(2 if leads else 3)
    through = lab.standby()
    if not leads:  # with other flags than the leader's, it leaves the place to the third one
        assert through.daemon.terminate() == 0
        place = ("--replicate", str(lab.engine.place()), "--http-port", str(through.web))
        through.start(*place, "--max-session", "other=60")
        wait_until(lambda: "give all replicas the same" in through.daemon.stderr(), SOON_S, "it has seen the flags")
    daemons.server("tvm", tracker=through.daemon, flavour="tvm")
    over, worked, failed = threading.Event(), [], []

    def use() -> None:
        tracker = rpc.connect_tracker(*through.daemon.address)
        try:
            while not over.is_set():
                remote = tracker.request("tvm", session_timeout=60)
                worked.append(remote.get_function("rpc.test.addone")(41))
                del remote
        except Exception as error:
            failed.append(repr(error))

    client, led = threading.Thread(target=use), {lab.leads()}
    client.start()
    try:
        for _ in range(3):
            least = len(worked) + 2
            wait_until(lambda least=least: failed or len(worked) >= least, 2 * SOON_S, "TVM's client goes on")
            change(lab, through)
            led.add(lab.leads())
        least = len(worked) + 2
        wait_until(lambda: failed or len(worked) >= least, 2 * SOON_S, "TVM's client goes on")
    finally:
        over.set()
        client.join(2 * SOON_S)
    assert failed == []
    assert {*worked} == {42}
    assert (through in led) is leads


# --- what a later leader knows -----------------------------------------------------------------


def test_leases_queues_and_drains_go_on_under_the_next_leader(lab: ReplicatedLab, daemons: Daemons) -> None:
    daemons.server("gpu", "--tracker", lab.where, "--name", "gpu0")
    daemons.server("spare", "--tracker", lab.where, "--name", "spare0")
    order: list[str] = []

    def queue_up(user: str) -> None:
        with rpcsys.connect_tracker(lab.where, user=user) as client:
            client.request("gpu", wait_timeout=2 * SOON_S).close()
            order.append(user)

    with rpcsys.connect_tracker(lab.where, user="ann") as ann:
        held, other = ann.request("gpu", session_timeout=600), ann.request(KEY, session_timeout=500)
        wait_until(lambda: "spare0" in {row["name"] for row in ann.summary()["servers"]}, SOON_S, "the spare is there")
        assert ann.drain("spare0")
        waiting = [threading.Thread(target=queue_up, args=(user,), daemon=True) for user in ("bob", "carol", "dave")]
        for number, thread in enumerate(waiting, 1):
            thread.start()
            wait_until(
                lambda number=number: ann.summary()["queue_info"]["gpu"]["pending"] == number, SOON_S, "it waits"
            )

        def leases() -> dict[str, tuple[Any, ...]]:
            same = ("key", "server", "holder", "address", "limit_s", "state")
            return {row["lease"]: tuple(row[name] for name in same) for row in ann.leases()}

        before, since = leases(), {row["lease"]: time.time() - row["since_s"] for row in ann.leases()}
        assert {row[4] for row in before.values()} == {600.0, 500.0}
        leader = lab.leads()
        leader.daemon.kill()
        lab.leads_beside(leader)
        wait_until(lambda: leases() == before, SOON_S, "the leases are as before")
        for row in ann.leases():
            assert abs(time.time() - row["since_s"] - since[row["lease"]]) < 2.0
        shown = subprocess.run(
            [sys.executable, "-m", "rpcsys.query", "leases", "--tracker", lab.where], capture_output=True, text=True
        )
        assert shown.returncode == 0
        assert shown.stdout.count("ann") == 2, shown.stdout
        renewed = ann.renew(held, 900)
        assert renewed is not None
        assert renewed >= 900
        ann.end_lease(other.lease["lease"], "enough")
        wait_until(lambda: ended(other), SOON_S, "its session has ended")
        states = {row["name"]: row["state"] for row in ann.summary()["servers"]}
        assert states["spare0"] == "drained"
        held.ping(30)
        held.close()
        for thread in waiting:
            thread.join(SOON_S)
        assert order == ["bob", "carol", "dave"]
        wait_until(lambda: len(ann.history()) == 5, SOON_S, "all are over")
        past = {row["lease"]: row for row in ann.history()}[held.lease["lease"]]
    assert (past["user"], past["key"], past["outcome"]) == ("ann", "gpu", "closed")
    assert past["limit_s"] == renewed
    assert abs(past["since"] - since[held.lease["lease"]]) < 2.0
    leader.start()
    lab.wait_same_history(5)


# --- what is in a replica's folder -------------------------------------------------------------


def test_the_folder_of_a_single_tracker_becomes_the_first_replicas(
    make_lab: MakeLab, daemons: Daemons, tmp_path: Path
) -> None:
    state, port = tmp_path / "state0", free_port()
    single = daemons.tracker("--state-dir", str(state), port=port)
    board = daemons.server(KEY, "--name", "old0", tracker=single)
    with rpcsys.connect_tracker(single.where) as tracker:
        with tracker.request(KEY) as session:
            earlier = session.lease["lease"]
        wait_until(tracker.history, SOON_S, "it is over")
        assert tracker.drain("old0")
    assert board.terminate() == 0
    assert single.terminate() == 0

    lab = make_lab()
    leader = lab.leads()
    assert leader.state == state
    daemons.server("other", "--tracker", lab.where, "--name", "old0")
    with rpcsys.connect_tracker(lab.where) as tracker, tracker.request(KEY) as session:
        later = session.lease["lease"]
    wait_until(lambda: [row["lease"] for row in history(lab.where)] == [later, earlier], SOON_S, "the history goes on")
    standby = lab.standby()
    wait_until(lambda: ("drained", "old0") in standby.present(), SOON_S, "it knows of the drain")
    lab.wait_same_history(2)  # also what ended before there were replicas
    leader.daemon.kill()
    lab.leads_beside(leader)

    def state_of_the_old() -> str:
        with rpcsys.connect_tracker(lab.where) as viewer:
            return {row["name"]: row["state"] for row in viewer.summary()["servers"]}.get("old0", "")

    assert wait_until(state_of_the_old, SOON_S, "it is back") == "drained"


def test_a_snapshot_is_what_an_empty_folder_begins_with_and_costs_the_others_no_history(make_lab: MakeLab) -> None:
    lab = make_lab(2, snapshot=20)
    written = {"key": "L3JwY3N5cy9sYWIvc25hcHNob3Q="}  # /rpcsys/lab/snapshot
    with rpcsys.connect_tracker(lab.where, user="ann") as ann, ann.request(KEY, session_timeout=600) as session:
        with load(lab, clients=2) as leased:
            wait_until(lambda: "kvs" in lab.engine.ask("/v3/kv/range", written), SOON_S, "there is a snapshot")
        lab.wait_same_history(len(leased.leases))
        third = lab.add()
        wait_until(lambda: third.present() == lab.leads().present(), SOON_S, "it has what holds")
        assert ("granted", session.lease["lease"]) in third.present()
        lab.wait_same_history(len(leased.leases))  # also what ended before the third one came
        for replica in lab.replicas[:-1]:
            replica.daemon.kill()
        assert lab.leads() is third
        with rpcsys.connect_tracker(third.daemon.where, user="ann") as tracker:
            (lease,) = tracker.leases()
            assert (lease["lease"], lease["holder"], lease["limit_s"]) == (session.lease["lease"], "ann", 600)


def test_a_replica_that_was_away_for_longer_than_the_journal_goes_back_has_the_same_history(make_lab: MakeLab) -> None:
    lab = make_lab(2, snapshot=20)
    written = {"key": "L3JwY3N5cy9sYWIvc25hcHNob3Q="}  # /rpcsys/lab/snapshot
    with load(lab, clients=2) as leased:
        away = lab.standby()
        away.daemon.kill()
        leased.wait_more()
        wait_until(lambda: "kvs" in lab.engine.ask("/v3/kv/range", written), SOON_S, "there is a snapshot")
        away.start()
        leased.wait_more()
    lab.wait_free(2)
    kept = lab.wait_same_history(len(leased.leases))
    assert "history_whole" in away.daemon.stderr()
    told = history(lab.where)
    leader = lab.leads()
    leader.daemon.terminate()
    assert lab.leads_beside(leader) is away
    assert len(told) == len(kept)
    assert history(lab.where) == told  # in the same order


def test_a_tracker_alone_loads_nothing_of_replicas(daemons: Daemons, tmp_path: Path) -> None:
    flags = ("--host", "127.0.0.1", "--port", "0", "--state-dir", str(tmp_path / "state"))
    tracker = daemons.launch("tracker", (sys.executable, "-X", "importtime", "-m", "rpcsys.tracker", *flags))
    tracker.await_ready_line()
    with TrackerProbe(tracker.address) as probe:
        probe.summary()
    assert "rpcsys.tracker.serving" in tracker.stderr()
    assert "rpcsys.tracker.replicas" not in tracker.stderr()
