"""Stages printed as tables, and drawn into a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rpcsys.graph._cut.split import split
from rpcsys.graph._ir.stage import Crossing, Stage, Stages
from rpcsys.graph._show.svg import svg_text
from rpcsys.graph._show.table import ms_text, size_text, table
from rpcsys.module.kinds.onnx_model import ModelLike

_LISTED = 3  # names in one cell


def show(
    stages: Stages | ModelLike,
    *,
    times: Mapping[str, float] | None = None,
    svg: str | os.PathLike[str] | None = None,
    file: TextIO | None = None,
) -> None:
    """Print the stages and the tensors between them; ``times`` are seconds by the stages' names.

    ``svg`` names a file to draw them into. A model that was not split is shown as one stage.
    """
    given = stages if isinstance(stages, Stages) else split(stages, [])
    out = file or sys.stdout
    out.write(text(given, times or {}))
    if svg is not None:
        Path(svg).write_text(svg_text(given, times or {}), encoding="utf-8")


def text(stages: Stages, times: Mapping[str, float]) -> str:
    """What `show` prints: a table of the stages, and one of what crosses."""
    timed = bool(times)
    head = ["STAGE", "TARGET", "NODES", "WEIGHTS", "NEEDS", *(["TIME"] if timed else [])]
    rows = [[*_stage_cells(stage), *([_time(stage, times)] if timed else [])] for stage in stages]
    tensors = [_crossing_cells(crossing) for crossing in stages.crossings()]
    return table(head, rows) + "\n" + table(["TENSOR", "TYPE", "BYTES", "FROM", "TO"], tensors)


def _stage_cells(stage: Stage) -> list[str]:
    nodes = len(list(stage.model.graph))
    return [stage.name, stage.target or "-", str(nodes), size_text(stage.weight_bytes), _listed(stage.needs)]


def _time(stage: Stage, times: Mapping[str, float]) -> str:
    return ms_text(times[stage.name]) if stage.name in times else "?"


def _crossing_cells(crossing: Crossing) -> list[str]:
    tensor = crossing.tensor
    targets = [target or "(output)" for target in crossing.targets]
    return [tensor.name, tensor.text(), size_text(tensor.nbytes), crossing.source or "(input)", _listed(targets)]


def _listed(names: Sequence[str]) -> str:
    more = f" +{len(names) - _LISTED}" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) or "-") + more
