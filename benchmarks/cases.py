"""The cases, as data: what is measured, of whom, and the goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.figures import (
    CPU_SECONDS,
    MICROSECONDS,
    MILLISECONDS,
    PER_SECOND,
    Goal,
    Unit,
    at_least,
    at_most,
    ours_at_most,
    rate,
    within,
)


@dataclass(frozen=True)
class Measured:
    """One operation of one subject, with where it runs.

    By default both ends share one core; ``apart`` gives the server a core of its own, for loads that
    would otherwise measure themselves. ``slow``: fewer rounds, as this peer takes its time.
    """

    subject: str
    operation: str
    parameters: tuple[tuple[str, Any], ...] = ()
    hide_numpy: bool = False
    apart: bool = False
    slow: bool = False

    @property
    def worker(self) -> tuple[str, bool, bool]:
        """What tells the workers apart."""
        return (self.subject, self.hide_numpy, self.apart)


@dataclass(frozen=True)
class Reading:
    """One of the figures a case takes, and the goals for it by peer."""

    what: str
    figure: str
    unit: Unit
    goals: Mapping[str, Goal] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Ours beside its peers. A peer may be several operations whose figures add up."""

    name: str
    ours: Measured
    peers: Mapping[str, tuple[Measured, ...]]
    readings: tuple[Reading, ...]

    @property
    def everything(self) -> list[Measured]:
        """All that is measured, ours first, each once."""
        return list(dict.fromkeys([self.ours, *(part for parts in self.peers.values() for part in parts)]))


KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
ARRAY_SIZES = {
    "1kB": KB,
    "16kB": 16 * KB,
    "64kB": 64 * KB,
    "1MB": MB,
    "16MB": 16 * MB,
    "64MB": 64 * MB,
    "256MB": 256 * MB,
}
LIBRARY_SIZES = (500 * MB, 5 * MB)
LARGEST_FOR_PEERS = 64 * MB  # TVM would take 9 s for one array of 256 MB
BARE_SIZES = ("1kB", "1MB", "64MB")
DIRECTIONS = {"to_device": "to the device", "from_device": "from the device"}


#: Bytes there and back: Mask R-CNN's features and what is found in them, as float32 and as int8; and a small network's.
OFFLOADED = {
    "4.2MB": (84 * 256 * 7 * 7 * 4, 84 * 28 * 28 * 4),
    "1.1MB": (84 * 256 * 7 * 7, 84 * 28 * 28 * 4),
    "150kB": (150_528, 4000),
}
PIPELINED_BATCH = 200
EIGHT_PAUSE_S = 0.2  # eight sessions end and eight new children wait in less
PAUSE_S = 0.05
TOGETHER_SIZE = "16MB"


def all_cases(folder: Path) -> list[Case]:
    """Every case. ``folder`` is where the models are, or will be."""
    return [
        null_call(),
        *pipelined_calls(),
        *arrays(),
        *bare_arrays(),
        *two_sessions(),
        inference(folder),
        compiled_function(folder),
        *offloaded_calls(),
        served(folder),
        *openings(),
        *sessions(),
        *trackers(),
        *libraries(folder),
        planned(folder),
        *pipelines(folder),
        *relays(),
        *through_proxy(),
        pairing(),
    ]


def null_call() -> Case:
    others = {name: (Measured(name, "null_call"),) for name in ("raw", "tvm", "rpyc", "grpc")}
    reading = Reading("null call", "seconds", MICROSECONDS, {"raw": at_most(1.4)})
    return Case("null-call", Measured("rpcsys", "null_call"), others, (reading,))


def pipelined_calls() -> list[Case]:
    return [
        pipelined_case("pipelined-calls", "null calls submitted, a core each", apart=True, times=4),
        pipelined_case("pipelined-calls-one-core", "null calls submitted, one core", apart=False, times=2),
    ]


def pipelined_case(name: str, what: str, *, apart: bool, times: float) -> Case:
    """Ours beside ourselves: many calls under way against one at a time."""
    batch = (("batch", PIPELINED_BATCH),)
    single = Measured("rpcsys", "null_call", apart=apart)
    reading = Reading(what, "seconds", each_second(), {"one at a time": at_least(times)})
    ours = Measured("rpcsys", "pipelined_calls", batch, apart=apart)
    return Case(name, ours, {"one at a time": (single,)}, (reading,))


def arrays() -> list[Case]:
    return [array_case(name, size, way) for name, size in ARRAY_SIZES.items() for way in DIRECTIONS]


def array_case(name: str, size: int, way: str) -> Case:
    parameters = (("size", size),)
    others = {"raw": (Measured("raw", way, parameters),)}
    if size <= LARGEST_FOR_PEERS:
        others |= {peer: (Measured(peer, way, parameters, slow=True),) for peer in ("tvm", "grpc", "rpyc")}
    reading = Reading(f"{name} {DIRECTIONS[way]}", "seconds", rate(size), array_goals(size))
    return Case(f"arrays-{name}-{way}", Measured("rpcsys", way, parameters), others, (reading,))


def bare_arrays() -> list[Case]:
    """Arrays where neither end has numpy."""
    return [bare_case(name, way) for name in BARE_SIZES for way in DIRECTIONS]


def bare_case(name: str, way: str) -> Case:
    size = ARRAY_SIZES[name]
    ours, raw = (Measured(who, way, (("size", size),), hide_numpy=True) for who in ("rpcsys", "raw"))
    what = f"{name} {DIRECTIONS[way]}, no numpy"
    reading = Reading(what, "seconds", rate(size), array_goals(size))
    return Case(f"bare-arrays-{name}-{way}", ours, {"raw": (raw,)}, (reading,))


def array_goals(size: int) -> dict[str, Goal]:
    """Small ones are as much a call as an array; from 1 MB on only the bytes count."""
    return {"raw": at_least(0.95 if size >= MB else 0.85)}


def two_sessions() -> list[Case]:
    return [two_sessions_case(way) for way in DIRECTIONS]


def two_sessions_case(way: str) -> Case:
    """Two sessions of one server against two raw sockets, each pair moving arrays at the same time."""
    size = ARRAY_SIZES[TOGETHER_SIZE]
    ours, raw = (Measured(who, way, (("size", size),)) for who in ("rpcsys-two-sessions", "raw-two"))
    what = f"{TOGETHER_SIZE} {DIRECTIONS[way]}, two at once"
    reading = Reading(what, "seconds", rate(2 * size), {"raw": at_least(0.95)})
    return Case(f"two-sessions-{way}", ours, {"raw": (raw,)}, (reading,))


def inference(folder: Path) -> Case:
    """Ours against the same run without a wire plus the same bytes without a run."""
    model = (("path", str(folder / models.SQUEEZENET)),)
    sizes = (("there", models.INPUT_BYTES), ("back", models.OUTPUT_BYTES))
    sum_of = (Measured("local", "inference", model), Measured("raw", "exchange", sizes))
    reading = Reading("squeezenet inference", "seconds", MILLISECONDS, {"local run + raw": at_most(1.2)})
    return Case(
        "inference",
        Measured("rpcsys", "inference", model),
        {"local run + raw": sum_of, "local run": sum_of[:1]},
        (reading,),
    )


def compiled_function(folder: Path) -> Case:
    """What a tuner does all day: an input there, the run, an output back."""
    parameters = (("path", str(folder / models.ADD_LIBRARY)), ("size", MB))
    ours, tvm = (Measured(who, "compiled_function", parameters) for who in ("rpcsys", "tvm"))
    what = "TVM-compiled function, 1 MB in and out"
    reading = Reading(what, "seconds", each_second(), {"tvm": at_least(10)})
    return Case("compiled-function", ours, {"tvm": (replace(tvm, slow=True),)}, (reading,))


def offloaded_calls() -> list[Case]:
    return [offloaded_case(name, *sizes) for name, sizes in OFFLOADED.items()]


def offloaded_case(name: str, there: int, back: int) -> Case:
    """A call of a deployed module that does nothing, against the same bytes over a raw socket: what offloading adds.

    Below a megabyte it is as much a call as an exchange of bytes, and has no goal.
    """
    sizes = (("there", there), ("back", back))
    ours, raw = (Measured(who, "exchange", sizes) for who in ("offloading", "raw"))
    reading = Reading(
        f"offloaded call, {name}", "seconds", MICROSECONDS, {"raw": at_most(1.2)} if there >= MB else {}
    )
    return Case(f"offloaded-call-{name}", ours, {"raw": (raw,)}, (reading,))


def served(folder: Path) -> Case:
    """Eight clients of one deployed network, whose server has a core of its own, against the network alone on that core."""
    model = (("path", str(folder / models.RESNET50)),)
    ours = Measured("serving", "served", (*model, ("clients", 8)), apart=True)
    alone = Measured("local", "network", model)
    reading = Reading("resnet50 for eight clients", "seconds", each_second(), {"alone": at_least(0.95)})
    return Case("served-eight-clients", ours, {"alone": (alone,)}, (reading,))


def openings() -> list[Case]:
    """Opening a session alone, without a call: in turn, and eight at the same moment of a server with a core of its own."""
    in_turn = Measured("rpcsys-eight-slots", "opening", (("pause_s", PAUSE_S),))
    eight = (("number", 8), ("pause_s", EIGHT_PAUSE_S))
    return [
        opening_case("opening-in-turn", "session opened, 50 ms after the last one", PAUSE_S, goal_ms=3),
        opening_case("opening-after-another", "the same, the one slot's last one just closed", 0.0),
        Case(
            "opening-eight-at-once",
            replace(in_turn, operation="openings_at_once", parameters=eight, apart=True),
            {"in turn": (in_turn,)},
            (
                Reading(
                    "eight sessions opened at once", "seconds", MILLISECONDS, {"in turn": ours_at_most(8)}
                ),
            ),
        ),
    ]


def opening_case(name: str, what: str, pause_s: float, goal_ms: float | None = None) -> Case:
    ours, tvm = (Measured(who, "opening", (("pause_s", pause_s),)) for who in ("rpcsys", "tvm"))
    goals = {} if goal_ms is None else {"tvm": ours_at_most(goal_ms)}
    reading = Reading(what, "seconds", MILLISECONDS, goals)
    return Case(name, ours, {"tvm": (replace(tvm, slow=True),)}, (reading,))


def sessions() -> list[Case]:
    """Opening a session and making the first call on it, one after the other; leased and directly."""
    others = {
        name: (Measured(name, "session", slow=name == "tvm"),) for name in ("tvm", "raw", "rpyc", "grpc")
    }
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
    """A device asked of a tracker, then a session: what a user of a lab waits for."""
    reading = Reading(what, "seconds", MILLISECONDS, {"tvm": ours_at_most(15)})
    return Case(name, Measured(subject, "lease"), {"tvm": (Measured("tvm-lease", "lease"),)}, (reading,))


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


def libraries(folder: Path) -> list[Case]:
    """One library for a model: its loading does not depend on its size, and writing it is about copying it."""
    large, small = ((("size", size),) for size in LIBRARY_SIZES)
    load = Case(
        "library-load",
        Measured("libraries", "load", large),
        {"5 MB": (Measured("libraries", "load", small),)},
        (Reading("500 MB library loaded", "seconds", MILLISECONDS, {"5 MB": ours_at_most(5)}),),
    )
    copied = {"copied": (Measured("libraries", "copy", large),)}
    written = [
        Case(
            f"library-{operation}",
            Measured("libraries", operation, large),
            copied,
            (Reading(what, "seconds", MILLISECONDS, {"copied": at_most(times)}),),
        )
        for operation, what, times in (
            ("export", "500 MB library written", 2.5),
            ("link", "500 MB library linked with code", 10),
        )
    ]
    network = (("path", str(folder / models.RESNET50)),)
    onnx = Case(
        "library-load-network",
        Measured("libraries", "load_network", network),
        {"local session": (Measured("local", "load_network", network),)},
        (Reading("resnet50 loaded", "seconds", MILLISECONDS, {"local session": at_most(1.2)}),),
    )
    return [load, *written, onnx]


def planned(folder: Path) -> Case:
    """What the planner expects of the cuts it found, beside what a pipeline of them takes."""
    network = (("path", str(folder / models.RESNET50)),)
    ours, measured = (Measured("plans", what, network, slow=True) for what in ("expected", "measured"))
    what = "resnet50, automatic cuts: slowest stage expected"
    reading = Reading(what, "seconds", MILLISECONDS, {"measured": within(0.1)})
    return Case("automatic-cuts", ours, {"measured": (measured,)}, (reading,))


def pipelines(folder: Path) -> list[Case]:
    """A network in two stages side by side: as a pipeline comes, and with a stage on a leased device."""
    network = (("path", str(folder / models.RESNET50)),)
    local, device, in_turn, slowest, whole = (
        Measured("pipelines", what, network)
        for what in ("side_by_side", "on_a_device", "in_turn", "slowest_alone", "whole")
    )
    goals = {
        "slowest stage": at_least(0.95),
        "stages in turn": at_least(1.9),
        "onnxruntime": at_least(0.97),
    }
    pace = Reading("resnet50 in two stages", "seconds", each_second(), goals)
    even = Unit("of an even share", 1.0, more_is_better=True)
    half = {"stages in turn": Goal(0.5, at_least=True, absolute=True)}
    peers = {"slowest stage": (slowest,), "stages in turn": (in_turn,), "onnxruntime": (whole,)}
    away = Reading(
        "the same, a stage on a leased device", "seconds", each_second(), {"both here": at_least(0.9)}
    )
    return [
        Case("pipeline", local, peers, (pace,)),
        Case(
            "pipeline-shares",
            replace(local, slow=True),
            {"stages in turn": (replace(in_turn, slow=True),)},
            (Reading("the smaller stage's time", "least_share", even, half),),
        ),
        Case("pipeline-device", device, {"both here": (local,)}, (away,)),
    ]


def relays() -> list[Case]:
    """A gigabyte through our proxy and through others that join streams, the ends being the same."""
    return [relay_case("one", "one stream", 1), relay_case("eight", "eight streams", 8)]


def relay_case(name: str, what: str, streams: int) -> Case:
    parameters = (("streams", streams), ("size", GB))
    ours, *others = (Measured(who, "relay", parameters, apart=True) for who in ("proxy", "socat", "haproxy"))
    speed = {"socat": at_least(0.95), "haproxy": at_least(1.7)}
    return Case(
        f"relay-{name}",
        ours,
        {other.subject: (other,) for other in others},
        (
            Reading(f"1 GB relayed, {what}", "seconds", rate(GB), speed),
            Reading("its CPU time", "cpu_seconds", CPU_SECONDS, {"socat": at_most(1.1)}),
        ),
    )


def through_proxy() -> list[Case]:
    """What the proxy costs a session: a ping and a call, all on one core; arrays, three processes on two cores."""
    ping = Case(
        "proxied-ping",
        Measured("raw-proxied", "null_call"),
        {"raw": (Measured("raw", "null_call"),)},
        (Reading("raw ping through the proxy", "seconds", MICROSECONDS, {"raw": at_most(2.8)}),),
    )
    return [ping, proxied_call(), *(proxied_arrays(way) for way in DIRECTIONS)]


def proxied_call() -> Case:
    """A null call beside a direct one and two raw pings: what the proxy adds is to be 1.8 pings, the bound is that sum's share."""
    direct, raw = Measured("rpcsys", "null_call"), Measured("raw", "null_call")
    others = {"direct": (direct,), "direct and two raw pings": (direct, raw, raw)}
    reading = Reading(
        "null call through the proxy", "seconds", MICROSECONDS, {"direct and two raw pings": at_most(0.94)}
    )
    return Case("proxied-null-call", Measured("rpcsys-proxied-pinned", "null_call"), others, (reading,))


def proxied_arrays(way: str) -> Case:
    """Both ends share a core, as in every other case, and the proxy has the other one."""
    size = ARRAY_SIZES["64MB"]
    ours, direct = (Measured(who, way, (("size", size),)) for who in ("rpcsys-proxied", "rpcsys"))
    what = f"64MB {DIRECTIONS[way]}, through the proxy"
    goals = {"direct": at_least(0.7)}
    return Case(
        f"proxied-arrays-{way}", ours, {"direct": (direct,)}, (Reading(what, "seconds", rate(size), goals),)
    )


def pairing() -> Case:
    """A server parks, a client comes, both hear of each other and leave, again and again."""
    measured = Measured("proxy", "pairing", apart=True)
    direct = Measured("no relay", "pairing", apart=True)
    goal = {"no relay": Goal(1000, at_least=True, absolute=True)}
    reading = Reading("pairs of streams", "seconds", each_second(), goal)
    return Case("pairing", measured, {"no relay": (direct,)}, (reading,))


def each_second() -> Unit:
    """How many a second, for a figure that is the seconds one took."""
    return Unit("/s", 1.0, more_is_better=True, payload=1)
