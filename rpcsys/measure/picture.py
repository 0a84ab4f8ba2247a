"""Draws the runs of a comparison as SVG, readable alone, on a light and on a dark page.

A panel for each board has the turns in the order in which they ran, and each subject's median with its interval. Turns
that do not count, of the warm-up or disturbed, are hollow. Below the panels are the intervals of the differences.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from rpcsys.measure.judge import Effect, Floats
from rpcsys.measure.outcome import BoardRuns, ModelComparison, sentences
from rpcsys.measure.reports import median, time_text

_WIDTH, _LEFT, _RIGHT = 860, 90, 24
_NAMES = 380  # the end of the names of differences
_PANEL, _GAP, _BAR, _LINE = 190, 44, 26, 18
_LETTERS = 40  # of a name
_DOTS = 1200  # of a subject on a board: more would only hide each other
_MARGIN = 0.25  # of the shown range, above and below
_COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700")
_DARK = ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#d29922")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600}.s{font-size:11px}.page{fill:#fff}"
    ".axis{stroke:#8c959f;fill:none}.grid{stroke:#d0d7de}.zone{fill:#8c959f;opacity:.18}"
)
_STYLE_DARK = "text{fill:#e6edf3}.page{fill:#0d1117}.axis{stroke:#768390}.grid{stroke:#30363d}"


def draw(found: ModelComparison, path: str | os.PathLike[str]) -> None:
    """Write the picture of a comparison to the file ``path``. Raises OSError where it cannot be written."""
    Path(path).write_text(drawing(found), encoding="utf-8")


def drawing(found: ModelComparison) -> str:
    """The picture as the text of an SVG file."""
    said = sentences(found)
    parts = [_text(_LEFT, 24 + place * _LINE, line, "t" if place < len(found.judgements) else "s")
             for place, line in enumerate(said)]  # fmt: skip
    top = 24 + len(said) * _LINE + 8
    parts += _legend(found, top)
    top += 34
    for board in found.boards:
        parts += _panel(found, board, top)
        top += _PANEL + _GAP
    bars = list(_effects(found))
    parts += _scale(found, bars, top)
    height = top + (len(bars) + 2) * _BAR
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img"><title>{escape(" ".join(said))}</title>'
    )
    return f'{head}<style>{_css()}</style><rect class="page" width="100%" height="100%"/>{"".join(parts)}</svg>\n'


def _css() -> str:
    light, dark = (
        "".join(
            f".c{place}{{fill:{colour};stroke:{colour}}}.h{place}{{fill:none;stroke:{colour};opacity:.35}}"
            for place, colour in enumerate(colours)
        )
        for colours in (_COLOURS, _DARK)
    )
    return f"{_STYLE}{light}@media (prefers-color-scheme:dark){{{_STYLE_DARK}{dark}}}"


def _text(x: float, y: float, text: str, style: str = "s", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(found: ModelComparison, top: float) -> list[str]:
    parts, x = [], float(_LEFT)
    for place, name in enumerate(found.subjects):
        parts.append(f'<circle class="{_colour(place)}" cx="{x + 4:.1f}" cy="{top:.1f}" r="4"/>')
        parts.append(_text(x + 14, top + 4, name))
        x += 30 + 7 * len(name)
    return parts


def _colour(place: int) -> str:
    return f"c{place % len(_COLOURS)}"


def _panel(found: ModelComparison, board: BoardRuns, top: float) -> list[str]:
    """The turns of one board."""
    blocks, right, bottom = board.blocks, _WIDTH - _RIGHT, top + _PANEL
    parts = [_text(_LEFT, top - 6, f"{board.name}: time of a call, turn by turn"),
             f'<path class="axis" d="M{_LEFT} {top:.1f}V{bottom:.1f}H{right}"/>']  # fmt: skip
    if not len(blocks.seconds):
        return [*parts, _text(_LEFT + 8, top + 20, "no turns")]
    kept = blocks.kept
    low, high = _shown(np.log(blocks.seconds[kept]))

    def y(seconds: float) -> float:
        return bottom - _PANEL * (math.log(seconds) - low) / (high - low)

    for share in (0.0, 0.5, 1.0):
        value = math.exp(low + share * (high - low))
        parts.append(f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{right}"/>')
        parts.append(_text(_LEFT - 6, y(value) + 4, time_text(value), anchor="end"))
    step = (right - _LEFT) / len(kept)
    for place in range(len(found.subjects)):
        for block in range(0, len(kept), math.ceil(len(kept) / _DOTS)):
            at = min(max(y(blocks.seconds[block, place]), top), bottom)
            style = _colour(place) if kept[block] else f"h{place % len(_COLOURS)}"
            parts.append(f'<circle class="{style}" cx="{_LEFT + (block + 0.5) * step:.1f}" cy="{at:.1f}" r="1.3"/>')
        ends = median(board, place, found.rules.confidence)
        parts += [f'<path class="{_colour(place)}" stroke-width="{1.6 if end is ends[1] else 0.6}" '
                  f'd="M{_LEFT} {y(end):.1f}H{right}"/>' for end in ends if not math.isnan(end)]  # fmt: skip
    return parts


def _shown(logs: Floats) -> tuple[float, float]:
    """The range of logarithms that a panel shows: nearly all turns; others lie on its edge."""
    low, high = (float(each) for each in np.quantile(logs, (0.05, 0.95)))
    margin = max((high - low) * _MARGIN, 1e-3)
    return low - margin, high + margin


def _effects(found: ModelComparison) -> Iterator[tuple[int, str, Effect]]:
    """The intervals to draw: of each subject on each board, and on all."""
    for place, judgement in enumerate(found.judgements, 1):
        for board, effect in zip(found.boards, judgement.effects, strict=False):
            if effect is not None and len(found.boards) > 1:
                yield place, f"{found.subjects[place]} on {board.name}", effect
        if judgement.effect is not None:
            yield place, f"{found.subjects[place]}, all" if len(found.boards) > 1 else "", judgement.effect


def _scale(found: ModelComparison, bars: Sequence[tuple[int, str, Effect]], top: float) -> list[str]:
    """The intervals of the differences, in percent of the first subject's time."""
    title = f"more time than {found.subjects[0]} ({found.rules.confidence * 100:g} % intervals)"
    if not bars:
        return [_text(_LEFT, top + 10, f"{title}: too few turns")]
    least = found.rules.least
    most = 1.15 * max(2 * least, *(abs(end) for *_, effect in bars for end in effect.change))
    middle, half = (_NAMES + _WIDTH - _RIGHT) / 2, (_WIDTH - _RIGHT - _NAMES) / 2

    def x(share: float) -> float:
        return middle + half * share / most

    bottom = top + (len(bars) + 1) * _BAR
    zone = f'<rect class="zone" x="{x(-least):.1f}" y="{top + 16:.1f}" width="{x(least) - x(-least):.1f}" '
    parts = [_text(_LEFT, top + 10, title), f'{zone}height="{bottom - top - 16:.1f}"/>',
             f'<path class="axis" d="M{x(0):.1f} {top + 16:.1f}V{bottom:.1f}"/>']  # fmt: skip
    parts += [_text(x(share), bottom + 14, f"{share * 100:+.2g} %", anchor="middle") for share in (-least, least)]
    for row, (place, name, effect) in enumerate(bars):
        change, low, high = effect.change
        at = top + (row + 1) * _BAR + 4
        parts.append(f'<path class="{_colour(place)}" stroke-width="3" d="M{x(low):.1f} {at:.1f}H{x(high):.1f}"/>')
        parts.append(f'<circle class="{_colour(place)}" cx="{x(change):.1f}" cy="{at:.1f}" r="5"/>')
        parts.append(_text(_LEFT, at + 4, f"{name[-_LETTERS:]} {change * 100:+.2f} %".strip()))
    return parts
