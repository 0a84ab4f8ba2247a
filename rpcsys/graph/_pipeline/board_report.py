"""What leased boards report of a pipeline's calls: the stages inside a segment, and when each device worked.

A session numbers its calls, and reports each turn of a call on a device. The devices that a call used show which
segment it was, and the order of its turns on one device which stage each of them was.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rpcsys.client import Session
from rpcsys.errors import RpcsysError
from rpcsys.graph._build.leased_board import LeasedBoard
from rpcsys.graph._build.leased_module import LeasedModule
from rpcsys.graph._build.stage_library import PlacedStage
from rpcsys.graph._pipeline.stats import DeviceRow, DeviceTurn, StageRun, StageStats
from rpcsys.graph._pipeline.topology import PipelineStage

Segment = Sequence[PlacedStage]


class ReportedTurn(NamedTuple):
    """One turn of a call on a device; times in seconds of the board's clock."""

    device: str
    call: int  # its number in the session
    began: float
    ended: float


class BoardReports:
    """The newest report of each board that a pipeline leases. Several threads may use it."""

    def __init__(self, stages: Iterable[PipelineStage]) -> None:
        self._segments: dict[LeasedBoard, dict[str, Segment]] = {}  # by the names of the pipeline's stages
        for stage in stages:
            for module in stage.functions:
                if isinstance(module, LeasedModule) and module.library.devices:
                    self._segments.setdefault(module.board, {})[stage.name] = stage.segment
        self._newest: dict[LeasedBoard, list[ReportedTurn]] = {}

    def figures(self, rows: Mapping[str, StageStats], failed: Mapping[str, int]) -> dict[str, StageStats]:
        """The rows of the stages inside segments; ``rows`` are those of the pipeline's stages.

        ``failed``: how many frames failed in each stage inside a segment. A stage of which its board reports nothing
        has the seconds of the whole call.
        """
        found: dict[str, list[ReportedTurn]] = {}
        for board, segments in self._segments.items():
            for name, turns in by_stage(self._reported(board), segments.values()).items():
                found.setdefault(name, []).extend(turns)
        names = {name: segment for segments in self._segments.values() for name, segment in segments.items()}
        return {
            stage.name: _row(rows[name], found.get(stage.name, ()), failed.get(stage.name, 0))
            for name, segment in names.items()
            if len(segment) > 1
            for stage in segment
        }

    def rows(self, runs: Sequence[StageRun]) -> list[DeviceRow]:
        """A row for each device of each board, in the clock of the pipeline's ``runs``."""
        rows = []
        for number, (board, segments) in enumerate(self._segments.items()):
            turns = self._reported(board)
            name = board.leased.key if len(self._segments) == 1 else f"{board.leased.key} {number}"
            stage_of = {turn: stage for stage, own in by_stage(turns, segments.values()).items() for turn in own}
            shift_s = shift([run for run in runs if run.stage in segments], turns)
            for device in dict.fromkeys(turn.device for turn in turns):
                inside = [
                    DeviceTurn(stage_of.get(turn, f"call {turn.call}"), turn.began + shift_s, turn.ended + shift_s)
                    for turn in turns
                    if turn.device == device
                ]
                rows.append(DeviceRow(f"{name} {device}", inside))
        return rows

    def _reported(self, board: LeasedBoard) -> list[ReportedTurn]:
        """The turns that a board reports; those of the report before if it gives none now."""
        session = board.session
        turns = _turns(session) if session is not None else []
        if turns:
            self._newest[board] = turns
        return self._newest.get(board, [])


def _turns(session: Session) -> list[ReportedTurn]:
    """The turns of a session, the oldest first; none if it is lost or its server does not report them."""
    try:
        runs = session.device_report()["runs"]
    except RpcsysError:
        return []
    return sorted(filter(None, map(_turn, runs)), key=lambda turn: turn.began)


def _turn(run: Any) -> ReportedTurn | None:
    match run:
        case [str(device), int(call), int() | float() as began, int() | float() as ended]:
            return ReportedTurn(device, call, began, ended)
    return None


def by_stage(turns: Iterable[ReportedTurn], segments: Iterable[Segment]) -> dict[str, list[ReportedTurn]]:
    """The turns of each stage; without those of calls that are of none of the segments, or may be of several."""
    ways = [sorted(segment, key=lambda stage: stage.device) for segment in segments]
    counts = Counter(_devices(way) for way in ways)
    known = {_devices(way): way for way in ways if counts[_devices(way)] == 1}
    found: dict[str, list[ReportedTurn]] = {}
    for call in _calls(turns):
        way = sorted(call, key=lambda turn: turn.device)
        for stage, turn in zip(known.get(_devices(way), ()), way, strict=False):
            found.setdefault(stage.name, []).append(turn)
    return found


def _devices(some: Iterable[PlacedStage | ReportedTurn]) -> tuple[str, ...]:
    return tuple(each.device for each in some)


def _calls(turns: Iterable[ReportedTurn]) -> Iterator[list[ReportedTurn]]:
    """The turns of each call, in the order in which they began."""
    ordered = sorted(turns, key=lambda turn: (turn.call, turn.began))
    return (list(call) for _, call in itertools.groupby(ordered, key=lambda turn: turn.call))


def _row(whole: StageStats, turns: Sequence[ReportedTurn], failed: int) -> StageStats:
    row = replace(whole, failed=failed, bytes=0)
    if not turns:
        return row
    seconds = whole.frames * sum(turn.ended - turn.began for turn in turns) / len(turns)
    return replace(row, busy_s=seconds, active_s=seconds, waiting_s=0.0)


def shift(runs: Sequence[StageRun], turns: Iterable[ReportedTurn]) -> float:
    """Seconds from the board's clock to the pipeline's: the most with which no call ends there after its answer came.

    Calls are compared in the order in which they ended, from the newest one back.
    """
    ended = sorted((run.ended for run in runs if not run.error), reverse=True)
    there = sorted((call[-1].ended for call in _calls(turns)), reverse=True)
    return min((here - away for here, away in zip(ended, there, strict=False)), default=0.0)
