"""The labs of many boards that the benchmarks of replicas measure."""

import os

import pytest

from benchmarks.peers import replicas
from benchmarks.peers.distant_engine import Store
from benchmarks.peers.subject import Place
from rpcsys.tracker.replicas.etcd_messages import delete, get, put, read_outcome, transaction, written_at


@pytest.fixture
def place(tmp_path):
    return Place(max(os.sched_getaffinity(0)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "how"), [("Trackers", "killed"), ("Replicas", "killed"), ("Replicas", "paused")])
def test_boards_and_waiting_clients_are_back_after_a_fault(place, kind, how):
    subject = getattr(replicas, kind)(place)
    try:
        with subject.fault(how, 20, 5) as trial:
            figures = trial.measure(1.0)
    finally:
        subject.stop()
    assert figures["gap"] > 0
    assert figures["places_lost"] == 0


@pytest.mark.live
def test_a_tracker_leads_on_an_engine_elsewhere(place):
    subject = replicas.ReplicasElsewhere(place)
    try:
        with subject.allocate(2) as trial:
            assert trial.measure(0.2)["per_second"] > 0
    finally:
        subject.stop()


@pytest.mark.slow
def test_the_boards_of_one_tracker_take_memory(place):
    subject = replicas.Trackers(place)
    try:
        with subject.many_boards(200) as trial:
            figures = trial.measure(1.0)
    finally:
        subject.stop()
    assert 1000 < figures["bytes"] < 100_000
    assert figures["seconds"] > 0


def test_the_engine_elsewhere_keeps_ranges_and_guards():
    store = Store()

    def do(conditions, operations):
        asked = transaction(conditions, operations)
        return read_outcome(asked, store.transaction(asked))

    assert do([written_at("/a", 0)], [put("/a", b"1"), put("/b/2", b"2"), put("/b/1", b"1"), put("/b0", b"3")]).held
    assert not do([written_at("/a", 0)], [put("/a", b"2")]).held
    found = do([], [get("/b/", "/b0"), get("/b/", "/b0", 1), get("/c")]).found
    assert [[pair.value for pair in each.pairs] for each in found] == [[b"1", b"2"], [b"1"], []]
    assert [each.more for each in found] == [False, True, False]
    do([], [delete("/b/", "/b0")])
    (left,) = do([], [get("/", "/z")]).found
    assert [pair.key for pair in left.pairs] == ["/a", "/b0"]
    assert do([written_at("/a", left.pairs[0].revision)], []).held
