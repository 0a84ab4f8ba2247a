"""Decides which stage of a pipeline starts which frame: plain synchronous code, events in, actions out.

Every stage takes the frames in their order, each when the stages that it needs have finished it. At most ``queue``
frames wait between a stage and the next one that takes its tensors. Where a tensor skips stages, as many frames may
wait as the skipped stages can hold, so that it does not slow them down. The oldest frame can always continue: every
stage has started all frames before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from rpcsys.errors import UsageError


class StageNode(NamedTuple):
    """A stage in the scheduler's view: the stages that it needs, and how many frames it can have under way."""

    name: str
    needs: tuple[str, ...] = ()
    replicas: int = 1


@dataclass(frozen=True)
class StartStage:
    """Let this replica of the stage run the frame."""

    stage: str
    replica: int
    frame: int


@dataclass(frozen=True)
class FrameFinished:
    """All stages have finished the frame."""

    frame: int


Action: TypeAlias = StartStage | FrameFinished


class FrameScheduler:
    """The frames under way in a pipeline, and what may start next."""

    def __init__(self, nodes: Sequence[StageNode], queue: int) -> None:
        self._nodes = {node.name: node for node in ordered(nodes)}
        self._capacities = _capacities(self._nodes, queue)
        self.limit = _limit(self._nodes, queue)  # the number of frames when every stage is busy and every queue is full
        self._free = {node.name: list(range(node.replicas)) for node in self._nodes.values()}
        self._next = dict.fromkeys(self._nodes, 0)
        #: For each frame under way: the stages that have finished it.
        self.under_way: dict[int, set[str]] = {}
        self._count = 0

    @property
    def has_capacity(self) -> bool:
        """Whether another frame may be admitted."""
        return len(self.under_way) < self.limit

    def admit(self, frame: int) -> list[Action]:
        """Admit a new frame, if there is capacity; frames are numbered from 0."""
        self._count = frame + 1
        self.under_way[frame] = set()
        return [*self._starts()]

    def drop(self, frame: int) -> list[Action]:
        """Drop a frame whose result is not needed any more."""
        self.under_way.pop(frame, None)
        return [*self._starts()]

    def ended(self, run: StartStage, failed: bool = False) -> list[Action]:
        """A replica has run a frame and is free; a frame that failed is dropped."""
        self._free[run.stage].append(run.replica)
        finished = []
        if failed:
            self.under_way.pop(run.frame, None)
        elif run.frame in self.under_way:  # otherwise it failed in another stage, or was dropped
            self.under_way[run.frame].add(run.stage)
            if len(self.under_way[run.frame]) == len(self._nodes):
                del self.under_way[run.frame]
                finished = [FrameFinished(run.frame)]
        return [*finished, *self._starts()]

    def _starts(self) -> Iterator[StartStage]:
        """All runs that can start, from the last stage to the first: a start gives the stages before it capacity."""
        for name in self._nodes:
            self._pass_over(name)
        for name in reversed(self._nodes):
            while self._can_start(name):
                yield StartStage(name, self._free[name].pop(0), self._next[name])
                self._next[name] += 1
                self._pass_over(name)

    def _pass_over(self, name: str) -> None:
        """Skip frames that failed or were dropped."""
        while self._next[name] < self._count and self._next[name] not in self.under_way:
            self._next[name] += 1

    def _can_start(self, name: str) -> bool:
        frame = self._next[name]
        return (
            bool(self._free[name])
            and frame < self._count
            and self.under_way[frame].issuperset(self._nodes[name].needs)
            and all(frame - self._next[taker] < capacity for taker, capacity in self._capacities[name].items())
        )


def ordered(nodes: Sequence[StageNode]) -> list[StageNode]:
    """The nodes, each behind those it needs. Raises `UsageError` if they need each other in a circle."""
    left = list(nodes)
    known: dict[str, StageNode] = {}
    while left:
        ready = [node for node in left if known.keys() >= set(node.needs)]
        if not ready:
            names = ", ".join(node.name for node in left)
            raise UsageError(f"the stages {names} wait for each other in a circle; no order can run them")
        known.update((node.name, node) for node in ready)
        left = [node for node in left if node.name not in known]
    return list(known.values())


def _capacities(nodes: Mapping[str, StageNode], queue: int) -> dict[str, dict[str, int]]:
    """How many frames stage ``first`` may have started that stage ``name`` has not: ``result[first][name]``.

    It is the sum along the longest path between the two: the replicas of each stage, and the queue behind each.
    """
    capacities: dict[str, dict[str, int]] = {name: {} for name in nodes}
    for first, node in nodes.items():
        reach = {first: node.replicas + queue}
        for name, other in nodes.items():
            ways = [reach[need] for need in other.needs if need in reach]
            if ways:
                if first in other.needs:
                    capacities[first][name] = max(ways)
                reach[name] = max(ways) + other.replicas + queue
    return capacities


def _limit(nodes: Mapping[str, StageNode], queue: int) -> int:
    """The number of frames that the longest path through the stages can hold."""
    held: dict[str, int] = {}
    for name, node in nodes.items():
        held[name] = max([held[need] for need in node.needs], default=0) + node.replicas + queue
    return max(held.values())
