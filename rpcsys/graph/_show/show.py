"""Prints stages as tables and draws them as SVG; formats tables, sizes and times as text.

The drawing has a column for each step of the flow, a box for each stage, and a line for the tensors between two
stages. A stage is one column right of the last stage that it needs. Stages in one column can run at the same time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple, TextIO

from rpcsys.graph._cut.split import split
from rpcsys.graph._ir.stage import Crossing, Stage, Stages
from rpcsys.module.kinds.onnx_model import ModelLike

_LISTED = 3  # names in one cell
_UNITS = ("B", "kB", "MB", "GB", "TB")

_BOX, _ROW = (150, 64), 104
_GAP = 150  # between columns: wide enough for a line's label
_MARGIN = 24
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600}.s{fill:#57606a;font-size:11px}"
    ".b{fill:#f6f8fa;stroke:#57606a}.e{fill:#fff;stroke:#8c959f;stroke-dasharray:3 3}"
    ".l{fill:none;stroke:#0969da;stroke-width:1.5}svg{background:#fff}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9198a1}.b{fill:#151b23;stroke:#9198a1}"
    ".e{fill:#0d1117;stroke:#768390}.l{stroke:#58a6ff}svg{background:#0d1117}}"
)
_INPUTS, _OUTPUTS = "\0inputs", "\0outputs"  # boxes that are not stages


def show(
    stages: Stages | ModelLike, *, times: Mapping[str, float] | None = None,
    svg: str | os.PathLike[str] | None = None, file: TextIO | None = None,
) -> None:  # fmt: skip
    """Print the stages and the tensors between them; ``times`` are seconds by stage name.

    ``svg`` is a file to draw them into. A model that was not split is shown as one stage.
    """
    given = stages if isinstance(stages, Stages) else split(stages, [])
    (file or sys.stdout).write(_tables(given, times or {}))
    if svg is not None:
        Path(svg).write_text(drawing(given, times or {}), encoding="utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under their headings, a line for each row."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (map(str.ljust, line, widths) for line in lines)
    return "".join("  ".join(cells).rstrip() + "\n" for cells in padded)


def size_text(count: int | None) -> str:
    """``16.0 kB``; ``?`` for a size that is unknown before the model runs."""
    if count is None:
        return "?"
    size, unit = float(count), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def ms_text(seconds: float) -> str:
    """``12.50 ms``."""
    return f"{seconds * 1e3:.2f} ms"


def _tables(stages: Stages, times: Mapping[str, float]) -> str:
    head = ["STAGE", "TARGET", "NODES", "WEIGHTS", "NEEDS"]
    rows = [[s.name, s.target or "-", str(_nodes(s)), size_text(s.weight_bytes), _listed(s.needs)] for s in stages]
    if times:
        head.append("TIME")
        for row in rows:
            row.append(ms_text(times[row[0]]) if row[0] in times else "?")
    crossing = []
    for each in stages.crossings():
        tensor, takers = each.tensor, _listed([target or "(output)" for target in each.targets])
        row = [tensor.name, tensor.text(), size_text(tensor.nbytes), each.source or "(input)", takers]
        crossing.append(row)
    return table(head, rows) + "\n" + table(["TENSOR", "TYPE", "BYTES", "FROM", "TO"], crossing)


def _nodes(stage: Stage) -> int:
    return sum(1 for _ in stage.model.graph)


def _listed(names: Sequence[str]) -> str:
    more = f" +{len(names) - _LISTED}" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) or "-") + more


class _Box(NamedTuple):
    title: str
    lines: tuple[str, ...]
    style: str
    x: float
    y: float


def drawing(stages: Stages, times: Mapping[str, float]) -> str:
    """The stages and the tensors between them as the text of an SVG file; ``times`` are seconds by stage name."""
    boxes = _placed(stages, times)
    width = max(box.x for box in boxes.values()) + _BOX[0] + _MARGIN
    height = max(box.y for box in boxes.values()) + _BOX[1] * 1.75 + _MARGIN  # lines that skip columns run below boxes
    parts = [*_lines(stages.crossings(), boxes), *map(_box_text, boxes.values())]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<style>{_STYLE}</style>"
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#0969da"/></marker></defs>' + "".join(parts) + "</svg>\n"
    )


def _placed(stages: Stages, times: Mapping[str, float]) -> dict[str, _Box]:
    columns: dict[str, int] = {_INPUTS: 0}
    for stage in stages:
        columns[stage.name] = 1 + max((columns[name] for name in stage.needs), default=0)
    columns[_OUTPUTS] = 1 + max(columns.values())
    words = {stage.name: _words(stage, times) for stage in stages}
    words |= {_INPUTS: ("inputs", (), "e"), _OUTPUTS: ("outputs", (), "e")}
    rows = [[name for name in columns if columns[name] == column] for column in range(columns[_OUTPUTS] + 1)]
    tallest = max(map(len, rows))
    boxes = {}
    for column, names in enumerate(rows):
        top = _MARGIN + (tallest - len(names)) * _ROW / 2
        for row, name in enumerate(names):
            boxes[name] = _Box(*words[name], _MARGIN + column * (_BOX[0] + _GAP), top + row * _ROW)
    return boxes


def _words(stage: Stage, times: Mapping[str, float]) -> tuple[str, tuple[str, ...], str]:
    title = f"{stage.name} · {stage.target}" if stage.target else stage.name
    nodes = _nodes(stage)
    facts = [f"{nodes} node{'s' if nodes > 1 else ''} · {size_text(stage.weight_bytes)}"]
    if stage.name in times:
        facts.append(ms_text(times[stage.name]))
    return title, tuple(facts), "b"


def _lines(crossings: Iterable[Crossing], boxes: Mapping[str, _Box]) -> list[str]:
    """One line between each two boxes, for all tensors that go from one to the other."""
    ways: dict[tuple[str, str], list[Crossing]] = {}
    for crossing in crossings:
        for target in crossing.targets:
            ways.setdefault((crossing.source or _INPUTS, target or _OUTPUTS), []).append(crossing)
    return [_line(boxes[source], boxes[target], tensors) for (source, target), tensors in ways.items()]


def _line(source: _Box, target: _Box, crossings: list[Crossing]) -> str:
    x1, y1 = source.x + _BOX[0], source.y + _BOX[1] / 2
    x2, y2 = target.x, target.y + _BOX[1] / 2
    dip = _BOX[1] if x2 - x1 > _GAP else 0  # a line that skips columns runs below their boxes
    sizes = [crossing.tensor.nbytes for crossing in crossings]
    total = size_text(None if None in sizes else sum(size or 0 for size in sizes))
    label = crossings[0].tensor.name if len(crossings) == 1 else f"{len(crossings)} tensors"
    each = "\n".join(f"{c.tensor.name}: {c.tensor.text()}, {size_text(c.tensor.nbytes)}" for c in crossings)
    middle = (x1 + x2) / 2
    return (
        f"<g><title>{escape(each)}</title>"
        f'<path class="l" marker-end="url(#a)" d="M{x1} {y1}C{x1 + _GAP / 2} {y1 + dip}'
        f' {x2 - _GAP / 2} {y2 + dip} {x2} {y2}"/>'
        + _centred(middle, (y1 + y2) / 2 + dip * 0.75 - 6, "", _short(label))
        + _centred(middle, (y1 + y2) / 2 + dip * 0.75 + 14, "s", total)
        + "</g>"
    )


def _box_text(box: _Box) -> str:
    middle, top = box.x + _BOX[0] / 2, box.y + _BOX[1] / 2 - 6 * len(box.lines) + 4
    words = [_centred(middle, top, "t", _short(box.title))]
    words += [_centred(middle, top + 16 * (i + 1), "s", line) for i, line in enumerate(box.lines)]
    rectangle = f'<rect class="{box.style}" x="{box.x}" y="{box.y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="6"/>'
    return f"<g>{rectangle}{''.join(words)}</g>"


def _centred(x: float, y: float, style: str, words: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle" class="{style}">{escape(words)}</text>'


def _short(words: str, limit: int = 22) -> str:
    return words if len(words) <= limit else words[: limit - 1] + "…"
