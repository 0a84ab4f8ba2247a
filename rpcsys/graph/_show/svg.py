"""Stages as an SVG drawing: a column for each step of the flow, a box for each stage, a line for what crosses.

A stage stands one column right of the last stage that it needs; what stands in one column can run at the
same time. Tensors that go the same way share a line, which tells their number and bytes and, on hovering, each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from rpcsys.graph._ir.stage import Crossing, Stage, Stages
from rpcsys.graph._show.table import ms_text, size_text

_BOX, _ROW = (150, 64), 104
_GAP = 150  # between columns: room for the words on a line
_MARGIN = 24
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600}.s{fill:#57606a;font-size:11px}"
    ".b{fill:#f6f8fa;stroke:#57606a}.e{fill:#fff;stroke:#8c959f;stroke-dasharray:3 3}"
    ".l{fill:none;stroke:#0969da;stroke-width:1.5}"
)
_INPUTS, _OUTPUTS = "\0inputs", "\0outputs"  # boxes that are no stages


@dataclass(frozen=True)
class _Box:
    title: str
    lines: tuple[str, ...]
    style: str
    x: float
    y: float


def svg_text(stages: Stages, times: Mapping[str, float]) -> str:
    """The drawing, as the text of an ``.svg`` file; ``times`` are seconds by the stages' names."""
    boxes = _placed(stages, times)
    width = max(box.x for box in boxes.values()) + _BOX[0] + _MARGIN
    height = max(box.y for box in boxes.values()) + _BOX[1] * 1.75 + _MARGIN  # lines that pass boxes go below
    parts = [*_lines(stages.crossings(), boxes), *(_box_text(box) for box in boxes.values())]
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
    by_name = {stage.name: stage for stage in stages}
    tallest = max(list(columns.values()).count(column) for column in set(columns.values()))
    boxes = {}
    for column in sorted(set(columns.values())):
        names = [name for name in columns if columns[name] == column]
        top = _MARGIN + (tallest - len(names)) * _ROW / 2
        for row, name in enumerate(names):
            words = _words(by_name[name], times) if name in by_name else _end(name)
            boxes[name] = _Box(*words, _MARGIN + column * (_BOX[0] + _GAP), top + row * _ROW)
    return boxes


def _words(stage: Stage, times: Mapping[str, float]) -> tuple[str, tuple[str, ...], str]:
    title = f"{stage.name} · {stage.target}" if stage.target else stage.name
    nodes = len(list(stage.model.graph))
    facts = [f"{nodes} node{'s' if nodes > 1 else ''} · {size_text(stage.weight_bytes)}"]
    if stage.name in times:
        facts.append(ms_text(times[stage.name]))
    return title, tuple(facts), "b"


def _end(name: str) -> tuple[str, tuple[str, ...], str]:
    return ("inputs" if name == _INPUTS else "outputs"), (), "e"


def _lines(crossings: Iterable[Crossing], boxes: Mapping[str, _Box]) -> list[str]:
    ways: dict[tuple[str, str], list[Crossing]] = {}
    for crossing in crossings:
        for target in crossing.targets:
            ways.setdefault((crossing.source or _INPUTS, target or _OUTPUTS), []).append(crossing)
    return [_line(boxes[source], boxes[target], tensors) for (source, target), tensors in ways.items()]


def _line(source: _Box, target: _Box, crossings: list[Crossing]) -> str:
    x1, y1 = source.x + _BOX[0], source.y + _BOX[1] / 2
    x2, y2 = target.x, target.y + _BOX[1] / 2
    far = x2 - x1 > _GAP  # it passes other columns: below their boxes
    dip = _BOX[1] if far else 0
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
    return (
        f'<g><rect class="{box.style}" x="{box.x}" y="{box.y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="6"/>'
        + "".join(words)
        + "</g>"
    )


def _centred(x: float, y: float, style: str, words: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle" class="{style}">{escape(words)}</text>'


def _short(words: str, limit: int = 22) -> str:
    return words if len(words) <= limit else words[: limit - 1] + "…"
