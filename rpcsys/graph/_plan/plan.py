"""A plan: cuts, a device for each stage, and the expected times, to compare with measured ones.

A divided model is exported as a library of the whole, plus a part for each server that runs a stage.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rpcsys import notebook
from rpcsys.client import Tracker
from rpcsys.errors import UsageError
from rpcsys.graph._build.build import PathLike, build
from rpcsys.graph._build.session_device import encoded_call
from rpcsys.graph._build.targets import Leased, Remote, Target
from rpcsys.graph._ir.stage import Stages
from rpcsys.graph._pipeline.pipeline import Pipeline
from rpcsys.graph._pipeline.resolve import CALLS
from rpcsys.graph._pipeline.stats import StageStats
from rpcsys.graph._plan.bench import load_on, write_part
from rpcsys.graph._plan.cost_model import Goal
from rpcsys.graph._plan.devices import PlanDevice, TrackerLike, open_sessions
from rpcsys.graph._show.show import drawing, ms_text, size_text, table
from rpcsys.link.address import address_text, tracker_defaults, tracker_text
from rpcsys.module import export_library

_HEAD = ["STAGE", "DEVICE", "NODES", "TAKES", "GIVES", "WORK", "WAY", "EXPECTED"]
_COMPARED = ["STAGE", "EXPECTED", "MEASURED", "OFF"]
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")  # characters that a deployed module's name must not contain


@dataclass(frozen=True)
class PlannedStage:
    """A stage, its device, and its expected times."""

    name: str
    device: str  # as the caller wrote it
    nodes: int  # number of nodes
    work_s: float  # its own work on a frame
    frame_s: float  # a single frame, with the transfers to its device and back
    stage_s: float  # from one frame to the next in a full pipeline; below frame_s if work and transfers overlap
    taken: int  # bytes that come in, after encoding
    given: int  # bytes that go out, after encoding
    call: str = ""  # the call of several stages that it is a part of


def whole_calls(planned: Iterable[PlannedStage], calls: Iterable[PlannedStage]) -> list[PlannedStage]:
    """The calls that a frame makes: the stages that are a call of their own, and ``calls`` of several."""
    return [*(stage for stage in planned if not stage.call), *calls]


@dataclass(frozen=True)
class Plan:
    """The best division found of a model over devices.

    It can be passed as cuts: ``graph.split(model, plan)`` gives the same stages as ``plan.stages``.
    """

    goal: Goal
    cuts: tuple[str | tuple[str, ...], ...]  # tensors, or tuples of tensors, as `split` takes them
    stages: Stages = field(repr=False)
    planned: tuple[PlannedStage, ...]  # the expected times of each stage, in their order
    devices: tuple[PlanDevice, ...] = field(repr=False)  # the device of each stage
    unused: tuple[str, ...] = ()  # devices that would not help
    encode: str = ""  # how arrays cross to devices behind a link
    warnings: tuple[str, ...] = ()  # one sentence each
    calls: tuple[PlannedStage, ...] = ()  # the expected times of calls to several stages on one board

    def __iter__(self) -> Iterator[str | tuple[str, ...]]:
        return iter(self.cuts)

    def __len__(self) -> int:
        return len(self.cuts)

    @property
    def bottleneck(self) -> PlannedStage:
        """The slowest stage, or call of several stages, which limits a pipeline's rate."""
        return max(whole_calls(self.planned, self.calls), key=lambda stage: stage.stage_s)

    @property
    def throughput(self) -> float:
        """Expected frames a second of a pipeline."""
        return 1 / max(self.bottleneck.stage_s, 1e-9)

    @property
    def latency_s(self) -> float:
        """Expected seconds of a single frame through all stages."""
        return sum(stage.frame_s for stage in whole_calls(self.planned, self.calls))

    @contextlib.contextmanager
    def pipeline(self, *, tracker: TrackerLike = None, wait_s: float = 60.0, queue: int = 2) -> Iterator[Pipeline]:
        """A context: the stages run on their devices, leased at ``tracker`` until it ends, and again if one is lost.

        ``wait_s`` is how long to wait for a device, in seconds; ``queue`` is as in `Pipeline`. Raises what leasing,
        loading and `Pipeline` raise.
        """
        with contextlib.ExitStack() as stack:
            targets: dict[str, Any] = {}
            replicas: dict[str, int] = {}
            for stage, device in zip(self.stages, self.devices, strict=True):
                if device.here:
                    targets[stage.name] = device.target
                elif device.chip:
                    targets[stage.name] = device.on_board(tracker, wait_s=wait_s, calls=CALLS, encode=self.encode)
                elif device.leased:
                    leased = Leased(device.key, tracker or "", wait_s=wait_s, calls=CALLS, encode=self.encode)
                    targets[stage.name] = leased
                else:
                    (session,) = open_sessions([device], None, wait_s, stack)
                    assert session is not None, "it is no CPU of this machine"
                    targets[stage.name] = encoded_call(load_on(session, stage), self.encode)
                    replicas[stage.name] = CALLS
            yield stack.enter_context(Pipeline(self.stages, targets, replicas=replicas, queue=queue))

    def export(self, path: PathLike, *, tracker: TrackerLike = None, fallback: bool = False) -> dict[str, Path]:
        """Write the stages as one library for `rpcsys.module.load_module`, and beside it the parts for servers.

        The library runs the stages of this machine on their CPUs. It calls the stages of other devices by the names of
        their parts, which ``rpcsys deploy`` puts there. A part's name is its file's without the ending; trackers find
        its servers by it. With ``fallback`` the library also holds these stages, and runs them while the servers are
        away. Returns the parts by stage. Raises `UsageError` if ``path`` cannot be written.
        """
        return export(self.stages, self.devices, path, tracker=tracker, encode=self.encode, fallback=fallback)

    def _rows(self) -> list[list[str]]:
        """The cells of `_HEAD` for each stage and call."""
        rows = []
        for stage in (*self.planned, *self.calls):
            sizes = [size_text(stage.taken), size_text(stage.given)]
            times = [ms_text(seconds) for seconds in (stage.work_s, stage.frame_s - stage.work_s, stage.stage_s)]
            rows.append([stage.name, stage.device, str(stage.nodes), *sizes, *times])
            if stage is self.bottleneck:
                rows[-1][-1] += "  <- slowest"
        return rows

    def _sentences(self) -> list[str]:
        """What the table does not say."""
        lines = []
        for stage, cut in zip(self.planned[1:], self.cuts, strict=True):
            lines.append(f"{stage.name} begins behind {cut if isinstance(cut, str) else ', '.join(cut)}")
        lines.append(f"expected: {self.throughput:.1f} frames/s, {ms_text(self.latency_s)} for one frame")
        if self.unused:
            lines.append(f"left out, since nothing is gained there: {', '.join(self.unused)}")
        return [*lines, *(f"warning: {warning}" for warning in self.warnings)]

    def __str__(self) -> str:
        """A table of the stages, and a line with the expected times."""
        return table(_HEAD, self._rows()) + "".join(f"{line}\n" for line in self._sentences())

    def _repr_html_(self) -> str:
        times = {stage.name: stage.stage_s for stage in self.planned}
        picture = notebook.picture(drawing(self.stages, times), "the stages, and the tensors between them")
        parts = [notebook.table(_HEAD, self._rows()), notebook.lines(self._sentences()), picture]
        return notebook.block(f"plan of {len(self.planned)} stages for {self.goal}", *parts)

    def compare(self, figures: Mapping[str, StageStats]) -> Comparison:
        """Compare expected with measured times of a pipeline of these stages: ``plan.compare(pipeline.figures())``.

        Raises `UsageError` for figures of other stages, and figures without frames.
        """
        rows = (*self.planned, *self.calls)
        missing = [stage.name for stage in rows if not getattr(figures.get(stage.name), "frames", 0)]
        if missing:
            text = f"there are no frames of {', '.join(missing)} in these figures"
            raise UsageError(f"{text}: run a pipeline of plan.stages, and pass its figures")
        took = {name: each.active_s / each.frames for name, each in figures.items() if each.frames}
        return Comparison(tuple(Compared(stage.name, stage.stage_s, took[stage.name]) for stage in rows))


@dataclass(frozen=True)
class Compared:
    """Seconds that a stage was expected to take for a frame, and seconds it took."""

    name: str
    expected_s: float
    measured_s: float

    @property
    def off(self) -> float:
        """The relative error of the expectation: 0.05 if the stage was expected to be 5 % slower than measured."""
        return self.expected_s / self.measured_s - 1 if self.measured_s else 0.0


@dataclass(frozen=True)
class Comparison:
    """Every stage, expected and measured."""

    stages: tuple[Compared, ...]

    @property
    def bottleneck(self) -> Compared:
        """The slowest expected time against the slowest measured time; the name is the slowest measured stage's."""
        slowest = max(self.stages, key=lambda stage: stage.measured_s)
        return Compared(slowest.name, max(stage.expected_s for stage in self.stages), slowest.measured_s)

    @property
    def off(self) -> float:
        """`Compared.off` of the bottleneck."""
        return self.bottleneck.off

    def _rows(self) -> list[list[str]]:
        """The cells of `_COMPARED` for each stage, and the slowest."""
        compared = (*self.stages, replace(self.bottleneck, name="slowest"))
        return [
            [each.name, ms_text(each.expected_s), ms_text(each.measured_s), f"{each.off:+.1%}"] for each in compared
        ]

    def __str__(self) -> str:
        """A table."""
        return table(_COMPARED, self._rows())

    def _repr_html_(self) -> str:
        return notebook.block("expected and measured times", notebook.table(_COMPARED, self._rows()))


def export(
    stages: Stages, devices: Sequence[PlanDevice], path: PathLike, *, tracker: TrackerLike = None, encode: str = "",
    fallback: bool = False,
) -> dict[str, Path]:  # fmt: skip
    """`Plan.export` of any stages, with the device of each, in their order.

    A part is an ONNX model, so that servers of any kind can load it, or a library if necessary (`write_part`).
    ``tracker`` finds servers by their keys, by default the environment's tracker; ``encode`` is as for `Remote`.
    Raises `UsageError` if ``path`` cannot be written, and what `build` raises.
    """
    target = Path(path)
    prefix = _UNFIT.sub("-", target.stem).strip("-.") or "model"
    targets: dict[str, Target] = {}
    names: dict[str, str] = {}
    for stage, device in zip(stages, devices, strict=True):
        if device.here:
            targets[stage.name] = device.target
            continue
        name = names[stage.name] = f"{prefix}-{stage.name}"
        known_to, address = _where(device, tracker)
        here = "onnxruntime" if fallback else None
        targets[stage.name] = Remote(serve=name, tracker=known_to, address=address, encode=encode, fallback=here)
    export_library(build(stages, targets), target)
    try:
        on = {stage.name: device for stage, device in zip(stages, devices, strict=True)}
        return {name: write_part(stages[name], target.with_name(part), on=on[name]) for name, part in names.items()}
    except OSError as error:
        raise UsageError(f"{error.filename or target.parent} cannot be written: {error.strerror or error}") from None


def _where(device: PlanDevice, tracker: TrackerLike) -> tuple[str, str]:
    """The tracker that knows the device's server, or else the server's address; the other one is ""."""
    if device.session is not None:
        return "", address_text(*device.session.address)
    if device.address:
        return "", device.address
    if tracker is None:
        tracker = tracker_defaults()
    if isinstance(tracker, Tracker):
        tracker = tracker.address
    return (tracker if isinstance(tracker, str) else tracker_text(tracker)), ""
