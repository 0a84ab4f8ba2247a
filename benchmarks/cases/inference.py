"""The Open Inference Protocol: our gateway compared with our own protocol, and with MLServer in the same run."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.case import Case, Measured, Reading
from benchmarks.figures import (
    MEGABYTES,
    MICROSECONDS,
    MILLISECONDS,
    Goal,
    Unit,
    at_least,
    at_most,
    each_second,
    ours_at_most,
)

SMALL, LARGE = 1, 1 << 16  # rows of 64 bytes
SIZES: Mapping[str, tuple[str, int, Unit]] = {
    "small": ("small call", SMALL, MICROSECONDS),
    "4MB": ("4 MB there and back", LARGE, MILLISECONDS),
}


def inference() -> list[Case]:
    return [
        *(added(size, goal) for size, goal in (("small", 2.6), ("4MB", 2.5))),
        compared("small", "triton_http", at_most(1 / 1.8)),
        compared("small", "triton_grpc", at_most(1 / 1.2)),
        compared("4MB", "triton_http", at_most(1 / 8), slow=True),
        compared("4MB", "triton_grpc", at_most(1 / 5)),
        compared("4MB", "json", at_most(1 / 1.3), slow=True),
        load("http", "gateway", "", at_least(5)),
        load("grpc", "gateway", "", at_least(1.3)),
        load("http", "gateway-batching", "-batched", at_least(10)),
        at_rest(),
    ]


def added(size: str, goal: float) -> Case:
    """A call through the gateway, against one that goes to the server itself; all on one core."""
    name, count, unit = SIZES[size]
    parameters = (("count", count),)
    reading = Reading(f"{name}, raw HTTP", "seconds", unit, {"called directly": at_most(goal)})
    peers = {"called directly": (Measured("gateway", "direct", parameters),)}
    return Case(f"inference-{size}", Measured("gateway", "http", parameters), peers, (reading,))


def compared(size: str, operation: str, goal: Goal, slow: bool = False) -> Case:
    """One call in our gateway and in MLServer; server and client have a core each."""
    name, count, unit = SIZES[size]
    parameters = (("count", count),)
    how = {"triton_http": "tritonclient.http", "triton_grpc": "tritonclient.grpc", "json": "JSON"}[operation]
    reading = Reading(f"{name}, {how}", "seconds", unit, {"mlserver": goal})
    peers = {"mlserver": (Measured("mlserver", operation, parameters, apart=True, slow=slow),)}
    ours = Measured("gateway", operation, parameters, apart=True)
    return Case(f"inference-{size}-{operation.replace('_', '-')}", ours, peers, (reading,))


def load(transport: str, subject: str, ending: str, goal: Goal) -> Case:
    """Calls per second, 32 under way."""
    what = f"32 small calls under way, {transport}{', batched' if ending else ''}"
    peers = {"mlserver": (Measured("mlserver", f"{transport}_load", apart=True),)}
    reading = Reading(what, "seconds", each_second(), {"mlserver": goal})
    return Case(
        f"inference-load-{transport}{ending}", Measured(subject, f"{transport}_load", apart=True), peers, (reading,)
    )


def at_rest() -> Case:
    """The gateway's memory, as on a machine of its own."""
    reading = Reading("gateway at rest", "bytes", MEGABYTES, {"mlserver": ours_at_most(70)})
    peers = {"mlserver": (Measured("mlserver", "idle", apart=True),)}
    return Case("inference-at-rest", Measured("gateway-unused", "idle", apart=True), peers, (reading,))
