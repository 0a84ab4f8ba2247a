"""Measures models on the boards of a lab: tables of models and boards, and what became slower since the last one.

    table = rpcsys.measure.bench(["model.onnx"], "all", tracker="lab:9190")
    table.save("today.json")
    for verdict in rpcsys.measure.cell_verdicts(rpcsys.measure.load_table("yesterday.json"), table):
        print(verdict)

It needs numpy and scipy: ``pip install 'rpcsys[measure]'``.
"""

from __future__ import annotations

from rpcsys.measure.bench import bench
from rpcsys.measure.regressions import CellOutcome, CellVerdict, cell_verdicts, confirmed
from rpcsys.measure.tables import BenchTable, Cell, Measured, load_table, merged_tables

__all__ = [
    "BenchTable",
    "Cell",
    "Measured",
    "CellOutcome",
    "CellVerdict",
    "bench",
    "confirmed",
    "cell_verdicts",
    "load_table",
    "merged_tables",
]
