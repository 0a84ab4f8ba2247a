"""What a closed lab costs: each row with TLS against the same without, and against peers with TLS."""

from __future__ import annotations

from benchmarks.case import Case, Measured, Reading
from benchmarks.cases.calls import ARRAY_SIZES, DIRECTIONS
from benchmarks.cases.labs import PAUSE_S
from benchmarks.figures import (
    KILOBYTES,
    MB,
    MEGABYTES,
    MICROSECONDS,
    MILLISECONDS,
    PER_SECOND,
    SECONDS,
    at_least,
    at_most,
    at_most_more,
    ours_at_most,
    rate,
)

#: The links' names, their subjects, and the least share of the plain session's rate.
LINKS = {"1Gbit": ("link", 0.97), "2.5Gbit": ("faster-link", 0.95)}
SEVERAL_WRITES_S = 2.0  # audit log and history are written once a second
CLIENTS, IDLE, BOARDS = 50, 500, 2000


def sessions() -> list[Case]:
    """Null calls, and arrays of 64 MB, in encrypted sessions."""
    plain, rpyc, grpc = (Measured(who, "null_call") for who in ("rpcsys", "rpyc-tls", "grpc-tls"))
    goals = {"plain": at_most(1.5), "rpyc-tls": at_most(1 / 2.3), "grpc-tls": at_most(1 / 12)}
    reading = Reading("null call, TLS", "seconds", MICROSECONDS, goals)
    peers = {"plain": (plain,), "rpyc-tls": (rpyc,), "grpc-tls": (grpc,)}
    null = Case("tls-null-call", Measured("rpcsys-tls", "null_call"), peers, (reading,))
    return [null, *(array_case(way) for way in DIRECTIONS)]


def array_case(way: str) -> Case:
    """Arrays against a plain session, and against it with the same bytes encrypted and decrypted in memory."""
    size = ARRAY_SIZES["64MB"]
    parameters = (("size", size),)
    plain = Measured("rpcsys", way, parameters)
    peers = {
        "plain": (plain,),
        "plain, and TLS": (plain, Measured("tls-alone", "encrypt_and_decrypt", parameters)),
        "rpyc-tls": (Measured("rpyc-tls", way, parameters, slow=True),),
        "grpc-tls": (Measured("grpc-tls", way, parameters, slow=True),),
    }
    goals = {"plain, and TLS": at_least(1 / 1.2), "grpc-tls": at_least(6)}
    reading = Reading(f"64MB {DIRECTIONS[way]}, TLS", "seconds", rate(size), goals)
    return Case(f"tls-arrays-64MB-{way}", Measured("rpcsys-tls", way, parameters), peers, (reading,))


def links() -> list[Case]:
    return [link_case(name, way) for name in LINKS for way in DIRECTIONS]


def link_case(name: str, way: str) -> Case:
    """Arrays over a link of a given rate, between two network namespaces with a core each."""
    size = ARRAY_SIZES["16MB"]
    who, share = LINKS[name]
    ours, plain = (Measured(f"{kind}-{who}", way, (("size", size),), apart=True) for kind in ("rpcsys-tls", "rpcsys"))
    reading = Reading(f"16MB {DIRECTIONS[way]}, {name}/s, TLS", "seconds", rate(size), {"plain": at_least(share)})
    return Case(f"tls-link-{name}-{way}", ours, {"plain": (plain,)}, (reading,))


def openings() -> list[Case]:
    """A session opened in turn; and one with its lease and first call, in a lab."""
    goal = {"plain": at_most_more(3)}
    pause = (("pause_s", PAUSE_S),)
    ours, plain = (Measured(who, "opening", pause) for who in ("rpcsys-tls", "rpcsys"))
    leased, open_lab = (Measured(who, "lease", pause) for who in ("rpcsys-lab-lease", "rpcsys-lease"))
    opened = Reading("session opened, TLS", "seconds", MILLISECONDS, goal)
    called = Reading("lease, session, first call, in a lab", "seconds", MILLISECONDS, goal)
    return [
        Case("tls-opening", ours, {"plain": (plain,)}, (opened,)),
        Case("tls-lease", leased, {"plain": (open_lab,)}, (called,)),
    ]


def trackers() -> list[Case]:
    """A closed lab's tracker (TLS, rules, audit log, history) against one without a lab, and TVM's."""
    fifty = (("clients", CLIENTS), ("least_s", SEVERAL_WRITES_S))
    closed, plain, tvm = "tracker-closed", "tracker-open", "tracker-tvm"
    load = Case(
        "tls-allocations",
        Measured(closed, "allocate", fifty, apart=True),
        {
            "open": (Measured(plain, "allocate", fifty, apart=True),),
            tvm: (Measured(tvm, "allocate", fifty, apart=True, slow=True),),
        },
        (
            Reading("allocations in a lab: CPU of each", "cpu_seconds", MICROSECONDS, {"open": at_most(1.4)}),
            Reading("allocations in a lab, 50 clients", "per_second", PER_SECOND, {tvm: at_least(25)}),
        ),
    )
    idle = Reading("memory of an idle connection", "bytes", KILOBYTES, {"open": ours_at_most(20)})
    back = Reading("2,000 boards back after kill -9", "seconds", SECONDS, {"open": ours_at_most(5)})
    return [
        load,
        tracker_case("tls-idle-connections", "idle_connections", IDLE, idle),
        tracker_case("tls-boards-back", "boards_back", BOARDS, back),
    ]


def tracker_case(name: str, operation: str, number: int, reading: Reading) -> Case:
    """One with a tracker of its own for each round."""
    ours, plain = (
        Measured(who, operation, (("number", number),), apart=True, slow=True)
        for who in ("tracker-closed", "tracker-open")
    )
    return Case(name, ours, {"open": (plain,)}, (reading,))


def boards() -> list[Case]:
    """An idle server's memory in a lab, and in none."""
    closed, plain = (Measured(who, "memory", slow=True) for who in ("lab-board", "board"))
    used = Reading("idle server in a lab", "bytes", MEGABYTES, {"in none": at_most_more(6)})
    none = Reading("OpenSSL in an idle server in no lab", "openssl_bytes", MEGABYTES, {"in a lab": ours_at_most(0)})
    return [
        Case("tls-idle-server", closed, {"in none": (plain,)}, (used,)),
        Case("tls-not-loaded", plain, {"in a lab": (closed,)}, (none,)),
    ]


def forwarded() -> list[Case]:
    """TVM's client behind `rpcsys connect`, against the same client and our server without a lab."""
    arrays = [forwarded_case(way) for way in DIRECTIONS]
    ours, plain = (Measured(who, "allocation") for who in ("tvm-behind-connect", "tvm-to-rpcsys"))
    goal = {"without": at_most(4)}
    reading = Reading("TVM's array made and released, behind connect", "seconds", MICROSECONDS, goal)
    return [*arrays, Case("tls-connect-allocation", ours, {"without": (plain,)}, (reading,))]


def forwarded_case(way: str) -> Case:
    size = 4 * MB
    ours, plain = (Measured(who, way, (("size", size),)) for who in ("tvm-behind-connect", "tvm-to-rpcsys"))
    what = f"TVM's client: 4MB {DIRECTIONS[way]}, behind connect"
    reading = Reading(what, "seconds", rate(size), {"without": at_least(0.8)})
    return Case(f"tls-connect-4MB-{way}", ours, {"without": (plain,)}, (reading,))
