"""A lab's waiting times: opening sessions, leasing devices, and the tracker's replies to many clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks import models
from benchmarks.case import Case, Measured, Reading
from benchmarks.figures import MILLISECONDS, PER_SECOND, at_least, each_second, ours_at_most

EIGHT_PAUSE_S = 0.2  # enough for eight sessions to end and eight new children to start
PAUSE_S = 0.05
HELD_S = 0.1  # a child for the next session waits by then


def openings() -> list[Case]:
    """Opening a session without a call: in turn, and eight at once on a server with its own core."""
    in_turn = Measured("rpcsys-eight-slots", "opening", (("pause_s", PAUSE_S),))
    eight = (("number", 8), ("pause_s", EIGHT_PAUSE_S))
    return [
        opening_case("opening-in-turn", "session opened, 50 ms after the last one", 2.5, pause_s=PAUSE_S),
        opening_case("opening-after-another", "the same, the one slot's last one just closed", 8, pause_s=0.0),
        opening_case("opening-after-another-tvm", "the same, TVM's client of ours", 8, "tvm-to-rpcsys", pause_s=0.0),
        opening_case("opening-after-held", "ours, the last one was held for 0.1 s", 6, pause_s=0.0, held_s=HELD_S),
        Case(
            "opening-eight-at-once",
            replace(in_turn, operation="openings_at_once", parameters=eight, apart=True),
            {"in turn": (in_turn,)},
            (Reading("eight sessions opened at once", "seconds", MILLISECONDS, {"in turn": ours_at_most(8)}),),
        ),
    ]


def opening_case(name: str, what: str, goal_ms: float, subject: str = "rpcsys", **times_s: float) -> Case:
    ours, tvm = (Measured(who, "opening", tuple(times_s.items())) for who in (subject, "tvm"))
    reading = Reading(what, "seconds", MILLISECONDS, {"tvm": ours_at_most(goal_ms)})
    return Case(name, ours, {"tvm": (replace(tvm, slow=True),)}, (reading,))


def sessions() -> list[Case]:
    """Opening a session and its first call, in turn; with a lease and without."""
    others = {name: (Measured(name, "session", slow=name == "tvm"),) for name in ("tvm", "raw", "rpyc", "grpc")}
    warm = {"tvm": ours_at_most(15)}
    own = Reading("session and first call", "seconds", MILLISECONDS, warm)
    theirs = Reading("the same, TVM's client of ours", "seconds", MILLISECONDS, warm)
    return [
        Case("session", Measured("rpcsys", "session"), others, (own,)),
        Case("session-tvm-client", Measured("tvm-to-rpcsys", "session"), {"tvm": others["tvm"]}, (theirs,)),
        lease_case("lease", "rpcsys-lease", "lease, session, first call"),
        lease_case("lease-tvm-client", "tvm-lease-of-rpcsys", "the same, TVM's client of ours"),
    ]


def lease_case(name: str, subject: str, what: str) -> Case:
    """A device requested from a tracker, its session, and the first call."""
    reading = Reading(what, "seconds", MILLISECONDS, {"tvm": ours_at_most(15)})
    return Case(name, Measured(subject, "lease"), {"tvm": (Measured("tvm-lease", "lease"),)}, (reading,))


def candidate(folder: Path) -> Case:
    """What TVM's RPCRunner does for one candidate of 256 elements: a lease, the upload, three runs, the end."""
    parameters = (("path", str(folder / models.CANDIDATE_LIBRARY)), ("size", models.CANDIDATE_BYTES))
    ours, tvm = (Measured(who, "candidate", parameters) for who in ("tvm-lease-of-rpcsys", "tvm-lease"))
    reading = Reading("candidates, TVM's client of ours", "seconds", each_second(), {"tvm": at_least(7)})
    return Case("lease-candidate-tvm", ours, {"tvm": (replace(tvm, slow=True),)}, (reading,))


def trackers() -> list[Case]:
    hundredfold = {"tracker-tvm": at_least(100)}
    ours, tvm = "tracker-rpcsys", "tracker-tvm"
    asked = [
        Case(
            f"tracker-{operation}",
            Measured(ours, operation),
            {tvm: (Measured(tvm, operation, slow=True),)},
            (Reading(f"TVM's client: {operation}", "seconds", each_second(), hundredfold),),
        )
        for operation in ("summary", "request")
    ]
    fifty = (("clients", 50),)
    load = Case(
        "tracker-allocations",
        Measured("tracker-rpcsys-all", "allocate", fifty, apart=True),
        {tvm: (Measured(tvm, "allocate", fifty, apart=True, slow=True),)},
        (
            Reading("allocations, 50 clients", "per_second", PER_SECOND, {tvm: at_least(40)}),
            Reading("their wait, p99", "p99_seconds", MILLISECONDS),
        ),
    )
    return [*asked, load]
