"""A comparison that shows itself in a notebook, with its picture."""

from __future__ import annotations

from rpcsys import notebook
from rpcsys.measure import picture, reports
from rpcsys.measure.outcome import ModelComparison, sentences


class ShownComparison(ModelComparison):
    """What `compare` returns. A class of its own, since the picture is drawn from what a comparison found."""

    def _repr_html_(self) -> str:
        rows = reports.rows(self, self.rules.confidence)
        drawn = notebook.picture(picture.drawing(self), "the turns, and the intervals of the differences")
        answer = notebook.lines(sentences(self))
        return notebook.block("comparison", answer, notebook.table(reports.HEAD, rows), drawn)
