"""What replicas cost a tracker, what they save a lab when its leader fails, and how many boards one tracker has."""

from __future__ import annotations

from benchmarks.case import Case, Measured, Reading
from benchmarks.figures import KILOBYTES, MILLISECONDS, PER_SECOND, SECONDS, Unit, at_least, at_most_more, ours_at_most

CLIENTS = 200
BOARDS, WAITING = 10_000, 1_000
MANY = 19_000  # as many as a process has descriptors for where the system allows 20,000
PERCENT = Unit("% of a core", 100.0)
#: By what happens to the leader: the most seconds without a lease.
FAULTS = {"killed": 2.0, "paused": 3.0, "stopped": 1.0}
ONE, REPLICAS, ELSEWHERE = "tracker-one", "tracker-replicas", "tracker-replicas-elsewhere"


def rates() -> list[Case]:
    """Allocations with replicas, against one tracker in the same run."""
    parameters = (("clients", CLIENTS),)
    one = Measured(ONE, "allocate", parameters, apart=True)
    alone = Measured(ONE, "wait")
    waits = Reading("a lease with replicas, one client", "seconds", MILLISECONDS, {ONE: at_most_more(2)})
    return [
        *(
            Case(
                f"replicas-allocations-{where}",
                Measured(who, "allocate", parameters, apart=True),
                {ONE: (one,)},
                (Reading(f"allocations, 200 clients, {what}", "per_second", PER_SECOND, {ONE: at_least(share)}),),
            )
            for where, who, what, share in (
                ("here", REPLICAS, "three etcds on the same cores", 0.4),
                ("elsewhere", ELSEWHERE, "an engine of 2 ms elsewhere", 0.6),
            )
        ),
        Case("replicas-one-client", Measured(REPLICAS, "wait"), {ONE: (alone,)}, (waits,)),
    ]


def faults() -> list[Case]:
    return [fault_case(how, seconds) for how, seconds in FAULTS.items()]


def fault_case(how: str, seconds: float) -> Case:
    """A leader with 10,000 boards and 1,000 waiting clients; the peer is one tracker, started again at once."""
    ours, one = (
        Measured(who, "fault", (("how", how), ("boards", BOARDS), ("waiting", WAITING)), apart=True, slow=True)
        for who in (REPLICAS, ONE)
    )
    readings = (
        Reading(f"10,000 boards, leader {how}: no lease for", "gap", SECONDS, {ONE: ours_at_most(seconds)}),
        Reading("then all boards are back in", "back", SECONDS, {ONE: ours_at_most(2)}),
        Reading("places in the queue that are lost", "places_lost", Unit("", 1.0), {ONE: ours_at_most(0)}),
    )
    return Case(f"replicas-leader-{how}", ours, {ONE: (one,)}, readings)


def many_boards() -> Case:
    """One tracker with 19,000 boards, against one with 1,900."""
    ours, few = (
        Measured(ONE, "many_boards", (("number", number),), apart=True, slow=True) for number in (MANY, MANY // 10)
    )
    readings = (
        Reading("19,000 boards: memory of each", "bytes", KILOBYTES),
        Reading("a tracker with them and nothing to do", "idle", PERCENT),
        Reading("they register again in", "seconds", SECONDS, {"1,900": ours_at_most(5)}),
    )
    return Case("boards-19000", ours, {"1,900": (few,)}, readings)
