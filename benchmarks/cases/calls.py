"""Calls and arrays: a session compared with a raw socket."""

from __future__ import annotations

from benchmarks.case import Case, Measured, Reading
from benchmarks.figures import KB, MB, MICROSECONDS, at_least, at_most, each_second, rate

ARRAY_SIZES = {
    "1kB": KB,
    "16kB": 16 * KB,
    "64kB": 64 * KB,
    "1MB": MB,
    "16MB": 16 * MB,
    "64MB": 64 * MB,
    "256MB": 256 * MB,
}
LARGEST_FOR_PEERS = 64 * MB  # TVM needs 9 s for one array of 256 MB
BARE_SIZES = ("1kB", "1MB", "64MB")
PLAIN_SIZES = ("16MB", "64MB", "256MB")
DIRECTIONS = {"to_device": "to the device", "from_device": "from the device"}
PIPELINED_BATCH = 200
TOGETHER_SIZE = "16MB"


def null_calls() -> list[Case]:
    """A call of nothing, with the C library and in Python alone."""
    peers = {name: (Measured(name, "null_call"),) for name in ("raw", "tvm", "rpyc", "grpc")}
    goals = {"raw": at_most(1.05), "tvm": at_most(1.0)}
    ours = Measured("rpcsys", "null_call")
    plain = Measured("rpcsys", "null_call", plain=True)
    return [
        Case("null-call", ours, peers, (Reading("null call", "seconds", MICROSECONDS, goals),)),
        Case(
            "plain-null-call",
            plain,
            {"raw": peers["raw"]},
            (Reading("null call, Python alone", "seconds", MICROSECONDS, {"raw": at_most(1.6)}),),
        ),
    ]


def pipelined_calls() -> list[Case]:
    """Our calls compared with our calls: many under way against one at a time."""
    submitted, mapped = "null calls submitted", "null calls by map"
    return [
        pipelined_case("pipelined-calls", f"{submitted}, a core each", "pipelined_calls", 10, apart=True),
        pipelined_case("pipelined-calls-one-core", f"{submitted}, one core", "pipelined_calls", 3),
        pipelined_case("mapped-calls-one-core", f"{mapped}, one core", "mapped_calls", 6),
    ]


def pipelined_case(name: str, what: str, operation: str, times: float, *, apart: bool = False) -> Case:
    single = Measured("rpcsys", "null_call", apart=apart)
    reading = Reading(what, "seconds", each_second(), {"one at a time": at_least(times)})
    ours = Measured("rpcsys", operation, (("batch", PIPELINED_BATCH),), apart=apart)
    return Case(name, ours, {"one at a time": (single,)}, (reading,))


def arrays() -> list[Case]:
    return [array_case(name, size, way) for name, size in ARRAY_SIZES.items() for way in DIRECTIONS]


def array_case(name: str, size: int, way: str) -> Case:
    parameters = (("size", size),)
    others = {"raw": (Measured("raw", way, parameters),)}
    if size <= LARGEST_FOR_PEERS:
        others |= {peer: (Measured(peer, way, parameters, slow=True),) for peer in ("tvm", "grpc", "rpyc")}
    reading = Reading(f"{name} {DIRECTIONS[way]}", "seconds", rate(size), {"raw": at_least(0.95)})
    return Case(f"arrays-{name}-{way}", Measured("rpcsys", way, parameters), others, (reading,))


def bare_arrays() -> list[Case]:
    """Arrays without numpy at either end."""
    return [bare_case(name, way) for name in BARE_SIZES for way in DIRECTIONS]


def bare_case(name: str, way: str) -> Case:
    size = ARRAY_SIZES[name]
    ours, raw = (Measured(who, way, (("size", size),), hide_numpy=True) for who in ("rpcsys", "raw"))
    what = f"{name} {DIRECTIONS[way]}, no numpy"
    reading = Reading(what, "seconds", rate(size), {"raw": at_least(0.95)})
    return Case(f"bare-arrays-{name}-{way}", ours, {"raw": (raw,)}, (reading,))


def plain_arrays() -> list[Case]:
    """Large arrays without the C library."""
    return [plain_case(name, way) for name in PLAIN_SIZES for way in DIRECTIONS]


def plain_case(name: str, way: str) -> Case:
    size = ARRAY_SIZES[name]
    parameters = (("size", size),)
    what = f"{name} {DIRECTIONS[way]}, Python alone"
    reading = Reading(what, "seconds", rate(size), {"raw": at_least(0.93)})
    ours = Measured("rpcsys", way, parameters, plain=True)
    return Case(f"plain-arrays-{name}-{way}", ours, {"raw": (Measured("raw", way, parameters),)}, (reading,))


def two_sessions() -> list[Case]:
    return [two_sessions_case(way) for way in DIRECTIONS]


def two_sessions_case(way: str) -> Case:
    """Two sessions of one server against two raw sockets; each pair transfers arrays at the same time."""
    size = ARRAY_SIZES[TOGETHER_SIZE]
    ours, raw = (Measured(who, way, (("size", size),)) for who in ("rpcsys-two-sessions", "raw-two"))
    what = f"{TOGETHER_SIZE} {DIRECTIONS[way]}, two at once"
    reading = Reading(what, "seconds", rate(2 * size), {"raw": at_least(0.95)})
    return Case(f"two-sessions-{way}", ours, {"raw": (raw,)}, (reading,))
