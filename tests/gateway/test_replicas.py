"""The window of a replica, and which one is least busy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.gateway.replicas import LEASED_DEPTH, REPLICA_STAGES, WINDOW, CallLoad, Replica, ReplicaStage, least_busy
from tests.gateway.transcripts import place, said


def replica(
    workers: int = 1, under_way: int = 0, *, leased: bool = False, batched: bool = False, **more: int
) -> Replica:
    made = Replica(1, None, None if leased else place(1))
    made.hello = said(workers=workers, **more)
    made.set_limits(batched=batched)
    for number in range(under_way):
        made.under_way[number] = CallLoad(made, number, [], [], 0, 0.0)
    return made


@pytest.mark.parametrize(
    ("about", "limit"),
    [
        ({}, WINDOW),
        ({"workers": 8}, WINDOW),
        ({"calls": 7}, 7),
        ({"workers": 3, "batched": True}, 3),
        ({"workers": 300, "batched": True}, WINDOW),
        ({"workers": 0, "batched": True}, 1),
        ({"leased": True}, LEASED_DEPTH),
        ({"leased": True, "batched": True}, 1),
    ],
)
def test_calls_under_way_are_limited(about: dict[str, int], limit: int) -> None:
    assert replica(**about).limit == limit  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 66)), max_size=6))
def test_the_least_busy_has_the_fewest_calls_for_each_worker(about: list[tuple[int, int]]) -> None:
    replicas = [replica(workers, under_way) for workers, under_way in about]
    found = least_busy(replicas, 0)
    free = [each for each in replicas if len(each.under_way) < WINDOW]
    assert (found is None) == (not free)
    if found is not None:
        assert len(found.under_way) / found.workers == min(len(each.under_way) / each.workers for each in free)


def test_ids_begin_anew_after_the_last() -> None:
    one = replica()
    one.last_id = 0xFFFFFFFF - 1
    assert [one.next_id(), one.next_id()] == [0xFFFFFFFF, 1]


def test_a_replica_that_is_gone_stays_so() -> None:
    one = replica()
    one.go(ReplicaStage.LIVE)
    one.go(ReplicaStage.GONE)
    assert REPLICA_STAGES[ReplicaStage.GONE] == ()
    with pytest.raises(AssertionError):
        one.go(ReplicaStage.LIVE)
