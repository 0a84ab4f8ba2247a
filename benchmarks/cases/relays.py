"""The proxy compared with other relays, and its cost for a session."""

from __future__ import annotations

from benchmarks.case import Case, Measured, Reading
from benchmarks.cases.calls import ARRAY_SIZES, DIRECTIONS
from benchmarks.figures import CPU_SECONDS, GB, MICROSECONDS, at_least, at_most, each_second, ours_at_least, rate


def relays() -> list[Case]:
    """A gigabyte through our proxy and through other relays, with the same ends."""
    return [relay_case("one", "one stream", 1), relay_case("eight", "eight streams", 8)]


def relay_case(name: str, what: str, streams: int) -> Case:
    parameters = (("streams", streams), ("size", GB))
    who = ("proxy", "bare relay", "socat", "haproxy")
    ours, *others = (Measured(one, "relay", parameters, apart=True) for one in who)
    speed = {"bare relay": at_least(0.95), "socat": at_least(0.95), "haproxy": at_least(1.7)}
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
    """The proxy's cost: a ping and a call on one core; arrays with three processes on two cores."""
    ping = Case(
        "proxied-ping",
        Measured("raw-proxied", "null_call"),
        {"raw": (Measured("raw", "null_call"),)},
        (Reading("raw ping through the proxy", "seconds", MICROSECONDS, {"raw": at_most(2.8)}),),
    )
    return [ping, proxied_call(), *(proxied_arrays(way) for way in DIRECTIONS)]


def proxied_call() -> Case:
    """A null call against a direct one plus two raw pings: the proxy may add 1.8 pings."""
    direct, raw = Measured("rpcsys", "null_call"), Measured("raw", "null_call")
    others = {"direct": (direct,), "direct and two raw pings": (direct, raw, raw)}
    reading = Reading(
        "null call through the proxy", "seconds", MICROSECONDS, {"direct and two raw pings": at_most(0.94)}
    )
    return Case("proxied-null-call", Measured("rpcsys-proxied-pinned", "null_call"), others, (reading,))


def proxied_arrays(way: str) -> Case:
    """Both ends share a core, as in the other cases; the proxy, or the bare relay, has the other core."""
    size = ARRAY_SIZES["64MB"]
    who = ("rpcsys-proxied", "rpcsys-bare-relayed", "rpcsys")
    ours, bare, direct = (Measured(one, way, (("size", size),)) for one in who)
    what = f"64MB {DIRECTIONS[way]}, through the proxy"
    goals = {"bare relay": at_least(0.95)}
    others = {"bare relay": (bare,), "direct": (direct,)}
    return Case(f"proxied-arrays-{way}", ours, others, (Reading(what, "seconds", rate(size), goals),))


def pairing() -> Case:
    """A server parks, a client connects, both get the other's greeting and close; repeated."""
    measured = Measured("proxy", "pairing", apart=True)
    direct = Measured("no relay", "pairing", apart=True)
    goal = {"no relay": ours_at_least(1000)}
    reading = Reading("pairs of streams", "seconds", each_second(), goal)
    return Case("pairing", measured, {"no relay": (direct,)}, (reading,))
