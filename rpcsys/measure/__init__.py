"""Measures models on boards so that the answer is never wrong by luck.

    found = measure.compare(tracker, ["old.onnx", "new.onnx"], key="rpi4", boards="all")
    print(found)  # new.onnx is 3.1 % faster than old.onnx (2.4 to 3.8, 95 %), on 4 of 4 boards

    table = measure.bench(["model.onnx"], "all", tracker="lab:9190")
    table.save("today.json")
    for verdict in measure.cell_verdicts(measure.load_table("yesterday.json"), table):
        print(verdict)

`compare` is ``rpcsys compare``, `bench` is ``rpcsys bench``. Both need numpy and scipy: ``pip install
'rpcsys[measure]'``. A public name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rpcsys import need_host
from rpcsys.errors import UsageError

if TYPE_CHECKING:
    from rpcsys.measure.benching import bench
    from rpcsys.measure.comparing import check, compare
    from rpcsys.measure.judge import Effect, Judgement, Verdict
    from rpcsys.measure.outcome import ModelComparison
    from rpcsys.measure.picture import draw
    from rpcsys.measure.regressions import CellOutcome, CellVerdict, cell_verdicts, confirmed
    from rpcsys.measure.subjects import Subject
    from rpcsys.measure.tables import BenchTable, Cell, Measured, load_table, merged_tables

need_host(__name__)

#: The module of each public name.
_MODULES = {
    "bench": "benching",
    **dict.fromkeys(("check", "compare"), "comparing"),
    **dict.fromkeys(("Effect", "Judgement", "Verdict"), "judge"),
    "ModelComparison": "outcome", "Subject": "subjects", "draw": "picture",
    **dict.fromkeys(("CellOutcome", "CellVerdict", "cell_verdicts", "confirmed"), "regressions"),
    **dict.fromkeys(("BenchTable", "Cell", "Measured", "load_table", "merged_tables"), "tables"),
}  # fmt: skip
_PACKAGES = ("numpy", "scipy")

__all__ = [
    "BenchTable",
    "Cell",
    "CellOutcome",
    "CellVerdict",
    "Effect",
    "Judgement",
    "Measured",
    "ModelComparison",
    "Subject",
    "Verdict",
    "bench",
    "cell_verdicts",
    "check",
    "compare",
    "confirmed",
    "draw",
    "load_table",
    "merged_tables",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562). Raises `UsageError` where a package is missing."""
    if name not in _MODULES:
        raise AttributeError(f"module 'rpcsys.measure' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module(f"rpcsys.measure.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        text = f"measuring needs {error.name}, which is not installed; type: pip install 'rpcsys[measure]'"
        raise UsageError(text) from None
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
