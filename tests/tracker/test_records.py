"""Records and their indexes stay consistent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker.entities import LeaseRecord, Peer, Server
from rpcsys.tracker.events import TrackerStarted
from rpcsys.tracker.labels import facts_of, wants_of, wants_of_key
from rpcsys.tracker.records import EPOCHS_AHEAD, GRACE_S, Deadlines, Records
from rpcsys.wire.control import DeployedModule


@pytest.fixture
def records():
    records = Records(TrackerStarted(1000.0, "run"))
    for conn in (1, 2):
        records.peers[conn] = Peer(conn, f"10.0.0.{conn}", "10.0.0.9")
    return records


def server(name, key="rpi4", identity="", **labels):
    return Server(name, key, 1, "10.0.0.7", 9090, labels, (), (), facts_of(key, name, labels, ()), identity)


def test_names_are_unique_and_freed(records):
    one, two = records.peers.values()
    assert [records.name_peer(one, "board"), records.name_peer(two, "board")] == ["board", "board-2"]
    records.unname_peer(one)
    assert (one.name, records.name_peer(two, "board")) == ("", "board")
    assert records.server_names == {"board": 2}


def test_servers_are_found_by_their_labels(records):
    one, two = records.peers.values()
    records.describe(one, server("a", site="x", identity="i"))
    records.describe(two, server("b", site="y"))
    assert list(records.serving(wants_of("rpi4", {"site": "x"}))) == [one]
    records.describe(one, server("a", site="y"))
    assert list(records.serving(wants_of("", {"site": "y"}))) == [two, one]
    assert records.identities == {}
    for peer in (one, two):
        records.forget_server(peer)
    assert records.by_fact == {}


def test_the_last_list_of_modules_counts(records):
    one, two = records.peers.values()
    records.deploy(one, (DeployedModule("m", "1"), DeployedModule("n", "1")), "")
    records.deploy(two, (DeployedModule("m", "2"),), "")
    assert {name: list(served) for name, served in records.modules.items()} == {"m": [1, 2], "n": [1]}
    records.deploy(one, (), "")
    assert {name: list(served) for name, served in records.modules.items()} == {"m": [2]}


def test_a_key_is_known_for_a_while_after_its_last_server(records):
    peer = records.peers[1]
    records.now = 5000.0
    queue = records.serve(peer, "rpi4")
    assert records.known_until(wants_of_key("rpi4")) is None
    records.serve_no_more(1, "rpi4")
    assert records.known_until(wants_of_key("rpi4")) == 5000.0 + GRACE_S
    records.forget_queue(queue)
    assert "rpi4" in records.queues
    records.now += GRACE_S
    records.forget_queue(queue)
    assert "rpi4" not in records.queues
    assert records.known_until(wants_of_key("never")) == 1000.0 + GRACE_S


@pytest.mark.parametrize(("epoch", "allowed"), [(1_000_000, True), (1_000_000 + EPOCHS_AHEAD, True), (1 << 50, False)])
def test_epochs_beyond_the_limit_are_refused(records, epoch, allowed):
    assert records.allow_epoch(epoch) == allowed
    assert records.epoch == (epoch if allowed else 0)


def test_a_lease_is_in_all_indexes_until_it_is_over(records):
    before = Records(TrackerStarted(1000.0, "run"))
    lease = LeaseRecord("run-1", 1, "rpi4", 1, "board", 2, "ann", "10.0.0.2", 1000.0, None)
    records.add_lease(lease)
    places = (records.leases, records.queues["rpi4"].leases, records.peers[1].serving, records.peers[2].holding)
    assert all(list(place.values()) == [lease] for place in places)
    records.now = 1060.0
    records.remove_lease(lease)
    assert not any(places)
    assert "rpi4" not in records.queues
    assert records.shares.spent(1060.0, "ann") == pytest.approx(60, rel=0.02)
    assert records != before


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 20), st.booleans()), max_size=200))
def test_deadlines_are_due_at_the_last_time_that_was_set(steps):
    deadlines, model = Deadlines(), {}
    for name, at, take in steps:
        if at is None:
            deadlines.drop((name,))
            model.pop((name,), None)
        elif take:
            taken = list(deadlines.take(at))
            assert set(taken) == {what for what, due in model.items() if due <= at}
            assert [model[what] for what in taken] == sorted(model[what] for what in taken)
            model = {what: due for what, due in model.items() if due > at}
        else:
            deadlines.set((name,), at)
            model[name,] = at
        assert deadlines.next == min(model.values(), default=None)
        assert len(deadlines._heap) <= 2 * len(model) + 64 + 1


def test_a_due_deadline_may_drop_move_and_set_later_ones():
    deadlines = Deadlines()
    for at, name in enumerate(["first", "dropped", "moved", "set again", "last"]):
        deadlines.set((name,), at)
    taken = []
    for (name,) in deadlines.take(4):
        taken.append(name)
        if name == "first":
            deadlines.drop(("dropped",))
            deadlines.set(("moved",), 9)
            deadlines.set((name,), 4)  # for the next time
    assert taken == ["first", "set again", "last"]
    assert list(deadlines.take(9)) == [("first",), ("moved",)]
    assert deadlines.next is None
