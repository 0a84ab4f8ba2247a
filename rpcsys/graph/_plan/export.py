"""A divided model as files: the library of the whole, and a part for each server that runs a stage."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rpcsys.client import Tracker
from rpcsys.errors import UsageError
from rpcsys.graph._build.build import build
from rpcsys.graph._build.targets import OnnxRuntime, Remote
from rpcsys.graph._ir.stage import Stage, Stages
from rpcsys.graph._plan.bench import fits_a_file
from rpcsys.graph._plan.devices import PlanDevice, TrackerLike
from rpcsys.link import address_text, tracker_defaults
from rpcsys.module import export_library

#: What the name of a deployed module has not.
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


def export(
    stages: Stages,
    devices: Sequence[PlanDevice],
    path: str | os.PathLike[str],
    *,
    tracker: TrackerLike = None,
    encode: str = "",
    fallback: bool = False,
) -> dict[str, Path]:
    """Write the whole as a library to ``path``, and beside it a part for each stage on a server (`Plan.export`).

    A part is an ONNX model, so that servers of any kind can take it, or a library where it has to be (`fits_a_file`).

    ``devices`` : the device of each stage, in their order
    ``tracker`` : where servers are found by their keys; by default the environment's
    ``encode`` : how arrays cross, as for `Remote`
    ``fallback`` : whether the library has the stages of servers, too, and runs them here while those are gone

    Returns the parts by the names of their stages. Raises `UsageError` for a path that cannot be written, and as
    `build`.
    """
    target = Path(path)
    prefix = _UNFIT.sub("-", target.stem).strip("-.") or "model"
    targets: dict[str, OnnxRuntime | Remote] = {}
    parts: dict[str, Path] = {}
    for stage, device in zip(stages, devices, strict=True):
        if device.cpus:
            targets[stage.name] = device.target
            continue
        name = f"{prefix}-{stage.name}"
        parts[stage.name] = target.with_name(f"{name}{'.onnx' if fits_a_file(stage) else '.so'}")
        known_to, address = _where(device, tracker)
        targets[stage.name] = Remote(
            serve=name, tracker=known_to, address=address, encode=encode, fallback="onnxruntime" if fallback else None
        )
    export_library(build(stages, targets), target)
    for name, part in parts.items():
        _write(stages[name], part)
    return parts


def _write(stage: Stage, path: Path) -> None:
    try:
        if fits_a_file(stage):
            stage.save(path)
        else:
            export_library(build(stage), path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None


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
