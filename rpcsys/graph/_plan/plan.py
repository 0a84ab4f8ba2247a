"""A plan: where to cut, what runs where, the times expected; and those compared with what was measured.

A divided model is exported as the library of the whole, and a part for each server that runs a stage.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rpcsys.client import Tracker
from rpcsys.errors import UsageError
from rpcsys.graph._build.build import PathLike, build
from rpcsys.graph._build.session_device import encoded_call
from rpcsys.graph._build.targets import Leased, OnnxRuntime, Remote
from rpcsys.graph._ir.stage import Stages
from rpcsys.graph._pipeline.pipeline import Pipeline
from rpcsys.graph._pipeline.resolve import CALLS
from rpcsys.graph._pipeline.stats import StageStats
from rpcsys.graph._plan.bench import load_on, write_part
from rpcsys.graph._plan.cost_model import Goal
from rpcsys.graph._plan.devices import PlanDevice, TrackerLike, open_sessions
from rpcsys.graph._show.show import ms_text, size_text, table
from rpcsys.link import address_text, tracker_defaults
from rpcsys.module import export_library

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")  # characters that the name of a deployed module cannot have


@dataclass(frozen=True)
class PlannedStage:
    """A stage, where it is to run, and what it is expected to take."""

    name: str
    device: str  # as the caller named it
    nodes: int  # that it computes
    work_s: float  # of its own work on a frame
    frame_s: float  # of a frame that is alone, with the way to its device and back
    stage_s: float  # from one frame to the next in a full pipeline; less than frame_s where work and way overlap
    taken: int  # bytes that come in, as they are encoded on the way
    given: int  # bytes that go out


@dataclass(frozen=True)
class Plan:
    """The best division found of a model over devices.

    It stands for its cuts: ``graph.split(model, plan)`` gives the same stages as ``plan.stages``.
    """

    goal: Goal
    cuts: tuple[str | tuple[str, ...], ...]  # tensors, or tuples of them, as `split` takes them
    stages: Stages = field(repr=False)
    planned: tuple[PlannedStage, ...]  # what is expected of each stage, in their order
    devices: tuple[PlanDevice, ...] = field(repr=False)  # the device of each stage
    unused: tuple[str, ...] = ()  # devices where nothing would be gained
    encode: str = ""  # how arrays cross to devices behind a link
    warnings: tuple[str, ...] = ()  # a sentence each

    def __iter__(self) -> Iterator[str | tuple[str, ...]]:
        return iter(self.cuts)

    def __len__(self) -> int:
        return len(self.cuts)

    @property
    def bottleneck(self) -> PlannedStage:
        """The slowest stage, which sets the pace of a pipeline."""
        return max(self.planned, key=lambda stage: stage.stage_s)

    @property
    def throughput(self) -> float:
        """Frames a second of a pipeline."""
        return 1 / max(self.bottleneck.stage_s, 1e-9)

    @property
    def latency_s(self) -> float:
        """Seconds of one frame that has all stages to itself."""
        return sum(stage.frame_s for stage in self.planned)

    @contextlib.contextmanager
    def pipeline(self, *, tracker: TrackerLike = None, wait_s: float = 60.0, queue: int = 2) -> Iterator[Pipeline]:
        """The stages at work on their devices, leased at ``tracker`` while the ``with`` lasts, anew if one is lost.

        ``wait_s`` (seconds) is how long to wait for a device, and ``queue`` is as in `Pipeline`. Raises what leasing,
        loading and `Pipeline` do.
        """
        with contextlib.ExitStack() as stack:
            targets: dict[str, Any] = {}
            replicas: dict[str, int] = {}
            for stage, device in zip(self.stages, self.devices, strict=True):
                if device.cpus:
                    targets[stage.name] = device.target
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

        The library runs stages of this machine on their CPUs, and calls those of other devices by the names of the
        parts, which ``rpcsys deploy`` puts there (a part's name is its file's without the ending; the tracker knows
        who has it). ``fallback``: it has those stages, too, and runs them itself while the servers are gone. Returns
        the parts by stage. Raises `UsageError` for a place that cannot be written to.
        """
        return export(self.stages, self.devices, path, tracker=tracker, encode=self.encode, fallback=fallback)

    def __str__(self) -> str:
        """A table of the stages, and a line of what to expect."""
        rows = []
        for stage in self.planned:
            sizes = [size_text(stage.taken), size_text(stage.given)]
            times = [ms_text(seconds) for seconds in (stage.work_s, stage.frame_s - stage.work_s, stage.stage_s)]
            rows.append([stage.name, stage.device, str(stage.nodes), *sizes, *times])
            if stage is self.bottleneck:
                rows[-1][-1] += "  <- slowest"
        lines = [table(["STAGE", "DEVICE", "NODES", "TAKES", "GIVES", "WORK", "WAY", "EXPECTED"], rows)]
        for stage, cut in zip(self.planned[1:], self.cuts, strict=True):
            lines.append(f"{stage.name} begins behind {cut if isinstance(cut, str) else ', '.join(cut)}\n")
        lines.append(f"expected: {self.throughput:.1f} frames/s, {ms_text(self.latency_s)} for one frame\n")
        if self.unused:
            lines.append(f"left out, since nothing is gained there: {', '.join(self.unused)}\n")
        lines += [f"warning: {warning}\n" for warning in self.warnings]
        return "".join(lines)

    def compare(self, figures: Mapping[str, StageStats]) -> Comparison:
        """What was expected against what a pipeline of these stages took: ``plan.compare(pipeline.figures())``.

        Raises `UsageError` for figures of other stages, or of none that ran.
        """
        missing = [stage.name for stage in self.planned if not getattr(figures.get(stage.name), "frames", 0)]
        if missing:
            text = f"there are no frames of {', '.join(missing)} in these figures"
            raise UsageError(f"{text}: run a pipeline of plan.stages, and ask it")
        took = {name: each.active_s / each.frames for name, each in figures.items() if each.frames}
        return Comparison(tuple(Compared(stage.name, stage.stage_s, took[stage.name]) for stage in self.planned))


@dataclass(frozen=True)
class Compared:
    """Seconds that a stage was expected to take for a frame, and those it took."""

    name: str
    expected_s: float
    measured_s: float

    @property
    def off(self) -> float:
        """How far off that was, as a share of what was measured: 0.05 where it was expected to be 5 % slower."""
        return self.expected_s / self.measured_s - 1 if self.measured_s else 0.0


@dataclass(frozen=True)
class Comparison:
    """Every stage, expected and measured."""

    stages: tuple[Compared, ...]

    @property
    def bottleneck(self) -> Compared:
        """The slowest stage expected against the slowest measured, which may be another one; named is the latter."""
        slowest = max(self.stages, key=lambda stage: stage.measured_s)
        return Compared(slowest.name, max(stage.expected_s for stage in self.stages), slowest.measured_s)

    @property
    def off(self) -> float:
        """`Compared.off` of the bottleneck."""
        return self.bottleneck.off

    def __str__(self) -> str:
        """A table."""
        compared = (*self.stages, replace(self.bottleneck, name="slowest"))
        rows = [
            [each.name, ms_text(each.expected_s), ms_text(each.measured_s), f"{each.off:+.1%}"] for each in compared
        ]
        return table(["STAGE", "EXPECTED", "MEASURED", "OFF"], rows)


def export(
    stages: Stages, devices: Sequence[PlanDevice], path: PathLike, *, tracker: TrackerLike = None, encode: str = "",
    fallback: bool = False,
) -> dict[str, Path]:  # fmt: skip
    """`Plan.export` of any stages, with the device of each, in their order.

    A part is an ONNX model, so that servers of any kind can take it, or a library where it has to be (`write_part`).
    ``tracker`` is where servers are found by their keys, by default the environment's; ``encode`` is as for `Remote`.
    Raises `UsageError` for a path that cannot be written, and as `build`.
    """
    target = Path(path)
    prefix = _UNFIT.sub("-", target.stem).strip("-.") or "model"
    targets: dict[str, OnnxRuntime | Remote] = {}
    names: dict[str, str] = {}
    for stage, device in zip(stages, devices, strict=True):
        if device.cpus:
            targets[stage.name] = device.target
            continue
        name = names[stage.name] = f"{prefix}-{stage.name}"
        known_to, address = _where(device, tracker)
        here = "onnxruntime" if fallback else None
        targets[stage.name] = Remote(serve=name, tracker=known_to, address=address, encode=encode, fallback=here)
    export_library(build(stages, targets), target)
    try:
        return {stage: write_part(stages[stage], target.with_name(name)) for stage, name in names.items()}
    except OSError as error:
        raise UsageError(f"{error.filename or target.parent} cannot be written: {error.strerror or error}") from None


def _where(device: PlanDevice, tracker: TrackerLike) -> tuple[str, str]:
    """The tracker that knows its server, or else the server's address; the other one is ""."""
    if device.session is not None:
        return "", address_text(*device.session.address)
    if device.address:
        return "", device.address
    if tracker is None:
        tracker = tracker_defaults()
    if isinstance(tracker, Tracker):
        tracker = tracker.address
    return (tracker if isinstance(tracker, str) else address_text(*tracker)), ""
