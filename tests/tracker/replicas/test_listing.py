"""Who the replicas are: behind, missing, taken away, and from which addresses they relay."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest

from rpcsys.tracker.replicas.engine import ReplicaStatus
from rpcsys.tracker.replicas.listing import BEHIND_S, MISSING_S, ReplicaListing

ONE = ReplicaStatus(("10.0.0.1", 9190), 0, "1", "leads", 5, 1.0)
OTHER = replace(ONE, address=("10.0.0.2", 9190), role="follows")
LEADER = ONE.address


def run(act: Callable[[ReplicaListing], None]) -> ReplicaListing:
    """The listing after ``act`` and all lookups."""

    async def main() -> ReplicaListing:
        tasks: list[asyncio.Task[None]] = []
        made = ReplicaListing(lambda work: tasks.append(asyncio.ensure_future(work)), lambda: None)
        act(made)
        await asyncio.gather(*tasks)
        return made

    return asyncio.run(main())


def test_one_that_says_nothing_is_missed_until_it_counts_as_taken_away() -> None:
    lines = []

    def act(made: ReplicaListing) -> None:
        for now, listed in ((0.0, [ONE, OTHER]), (MISSING_S - 1, [ONE]), (MISSING_S + 1, [ONE])):
            made.note(listed, 5, now)
            lines.append(made.line(LEADER, 3))

    made = run(act)
    leads = "10.0.0.1:9190 leads (term 3)"
    assert lines == [f"2 trackers, {leads}", f"1 tracker, {leads}, 1 missing", f"1 tracker, {leads}"]
    assert made.addresses == ("10.0.0.1",)  # it may relay no more


def test_one_that_is_missed_may_relay_as_soon_as_it_is_back() -> None:
    def act(made: ReplicaListing) -> None:
        made.note([ONE, OTHER], 5, 0.0)
        made.note([ONE], 5, MISSING_S - 1)

    assert {*run(act).addresses} == {"10.0.0.1", "10.0.0.2"}


def test_one_that_has_moved_is_listed_once() -> None:
    def act(made: ReplicaListing) -> None:
        made.note([replace(ONE, through=2, since=1.0), replace(ONE, through=5, since=2.0)], 5, 0.0)

    (row,) = run(act).rows(7)
    assert (row["address"], row["through"], row["behind"]) == ("10.0.0.1:9190", 5, 2)


def test_one_that_lacks_an_entry_for_long_is_behind() -> None:
    def act(made: ReplicaListing) -> None:
        for now in (0.0, 1.0, 2.0 + BEHIND_S):
            made.note([replace(ONE, through=5 + int(now)), OTHER], 0, now)

    made = run(act)
    assert made.behind_s == {"10.0.0.1:9190": 0.0, "10.0.0.2:9190": 1.0 + BEHIND_S}
    assert made.line(LEADER, 3).endswith(", 1 behind")


def test_a_lookup_that_ends_after_its_replica_was_taken_away_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lookup(*args: object, **kwargs: object) -> list[object]:
        await asyncio.sleep(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.0.0.9", 0))]

    def act(made: ReplicaListing) -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
        made.note([ONE], 5, 0.0)
        made.note([], 5, MISSING_S + 1)

    assert run(act).addresses == ()
