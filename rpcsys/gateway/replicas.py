"""The replicas of models: connections to model hosts, and leased sessions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from rpcsys.gateway.actions import ReplicaPlace
from rpcsys.gateway.calls import InferenceCall

#: Calls under way on one connection: a model host's window.
WINDOW = 64
#: Calls under way for each worker of a leased device: one runs, and the next is there when it ends.
LEASED_DEPTH = 2


class ReplicaHello(NamedTuple):
    """What a model host says of itself, in its HELLO; of a leased session the same is known from the pool's file.

    ``inputs`` and ``outputs``: as there, dicts with ``name``, ``dtype`` and ``shape``; None where they are not
    described. ``workers``: calls that run at once. ``calls`` and ``size``: the window, with ``size`` in bytes.
    """

    version: str = ""
    kind: str = ""
    inputs: Sequence[Any] | None = None
    outputs: Sequence[Any] | None = None
    workers: int = 1
    calls: int = WINDOW
    size: int = 64 << 20


class ReplicaStage(Enum):
    """How far a replica is."""

    OPENING = auto()
    LIVE = auto()
    LEAVING = auto()  # it gets no more calls, and is closed when those under way are answered
    GONE = auto()


#: From where to where a replica goes.
REPLICA_STAGES = {
    ReplicaStage.OPENING: (ReplicaStage.LIVE, ReplicaStage.GONE),
    ReplicaStage.LIVE: (ReplicaStage.LEAVING, ReplicaStage.GONE),
    ReplicaStage.LEAVING: (ReplicaStage.GONE,),
    ReplicaStage.GONE: (),
}


class CallLoad:
    """What is under way in one frame: a call, or those of a batch.

    ``calls``: in their order in the batch; None for one that has finished already. ``rows``: of each; ``size``: bytes
    in all.
    """

    __slots__ = ("call_id", "calls", "replica", "rows", "sent", "size")

    def __init__(
        self, replica: Replica, call_id: int, calls: Sequence[InferenceCall], rows: list[int], size: int, sent: float
    ) -> None:
        self.replica = replica
        self.call_id = call_id
        self.calls: list[InferenceCall | None] = list(calls)
        self.rows = rows
        self.size = size
        self.sent = sent


class Replica:
    """One connection to a model. ``number``: never used again."""

    __slots__ = (
        *("announced", "hello", "last_id", "limit", "model", "number", "place", "since"),
        *("size", "stage", "under_way", "used", "window", "workers"),
    )

    def __init__(self, number: int, model: Any, place: ReplicaPlace | None) -> None:
        self.number = number
        self.model = model
        self.place = place  # None for a leased session
        self.stage = ReplicaStage.OPENING
        self.hello = ReplicaHello()
        self.announced = 0  # the model's number of HELLOs when its own came
        self.since = 0.0  # when it was opened
        self.workers = self.limit = 1
        self.window = 0  # in bytes
        self.under_way: dict[int, CallLoad] = {}  # by call_id, the oldest first
        self.size = 0  # bytes under way
        self.last_id = 0
        self.used = 0  # the model's number of frames when it was last sent one

    def go(self, stage: ReplicaStage) -> None:
        """Go to ``stage``."""
        assert stage in REPLICA_STAGES[self.stage], (self.stage, stage)
        self.stage = stage

    def set_limits(self, *, batched: bool) -> None:
        """By its HELLO. ``batched``: what waits is joined, so each worker gets one call at a time."""
        hello = self.hello
        self.workers = max(1, hello.workers)
        self.window = hello.size
        depth = LEASED_DEPTH if self.place is None else WINDOW
        self.limit = max(1, min(self.workers if batched else depth * self.workers, hello.calls, WINDOW))

    def has_room(self, size: int) -> bool:
        """Whether it may be sent a call of ``size`` bytes. One alone may be larger than the window."""
        under_way = len(self.under_way)
        return under_way < self.limit and (not under_way or self.size + size <= self.window)

    def next_id(self) -> int:
        """The id of the next call."""
        self.last_id = self.last_id % 0xFFFFFFFF + 1
        return self.last_id


def least_busy(replicas: Sequence[Replica], size: int) -> Replica | None:
    """The one with the fewest calls under way for each worker; of equals, the one used least lately.

    None if no one has room for a call of ``size`` bytes.
    """
    best = None
    load = 0
    for replica in replicas:
        if not replica.has_room(size):
            continue
        own = len(replica.under_way)
        if best is not None:
            difference = own * best.workers - load * replica.workers
            if difference > 0 or (not difference and replica.used >= best.used):
                continue
        best = replica
        load = own
    return best
