"""ONNX graphs over devices: split a model into stages, and build each stage for the machine that runs it.

    stages = graph.split("resnet50.onnx", ["r20"])
    model = graph.build(stages, {"stage1": graph.OnnxRuntime(cpus=[1])})
    module.export_library(model, "resnet50.so")

`samples` makes networks to try this with. A public name is imported when it is first used. So sample networks need
only onnx, and the error for a missing package names the package to install.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rpcsys import need_host
from rpcsys.errors import UsageError

if TYPE_CHECKING:
    from rpcsys.graph._build.build import Offload, build, create, offload
    from rpcsys.graph._build.targets import Leased, OnnxRuntime, Reference, Remote, Tvm, supported
    from rpcsys.graph._cut.partition import partition
    from rpcsys.graph._cut.region import annotate, annotated, operators
    from rpcsys.graph._cut.split import split
    from rpcsys.graph._ir.models import save
    from rpcsys.graph._ir.stage import Crossing, Stage, Stages
    from rpcsys.graph._ir.tensor_info import TensorInfo
    from rpcsys.graph._pipeline.pipeline import Pipeline
    from rpcsys.graph._pipeline.topology import PipelineStage
    from rpcsys.graph._plan.auto_cuts import auto_cuts
    from rpcsys.graph._plan.plan import Comparison, Plan, PlannedStage
    from rpcsys.graph._plan.weigh import Weighed, Weight, weigh
    from rpcsys.graph._show.show import show

need_host(__name__)

__all__ = [
    "Comparison", "Crossing", "Leased", "Offload", "OnnxRuntime", "Pipeline", "PipelineStage", "Plan", "PlannedStage",
    "Reference", "Remote", "Stage", "Stages", "TensorInfo", "Tvm", "Weighed", "Weight", "annotate", "annotated",
    "auto_cuts", "build", "create", "offload", "operators", "partition", "save", "show", "split", "supported", "weigh",
]  # fmt: skip

#: The module of each public name.
_MODULES = {
    **dict.fromkeys(("Offload", "build", "create", "offload"), "_build.build"),
    **dict.fromkeys(("Leased", "OnnxRuntime", "Reference", "Remote", "Tvm", "supported"), "_build.targets"),
    **dict.fromkeys(("annotate", "annotated", "operators"), "_cut.region"),
    **dict.fromkeys(("Crossing", "Stage", "Stages"), "_ir.stage"),
    **dict.fromkeys(("Comparison", "Plan", "PlannedStage"), "_plan.plan"),
    **dict.fromkeys(("Weighed", "Weight", "weigh"), "_plan.weigh"),
    "Pipeline": "_pipeline.pipeline", "PipelineStage": "_pipeline.topology", "TensorInfo": "_ir.tensor_info",
    "auto_cuts": "_plan.auto_cuts", "partition": "_cut.partition", "save": "_ir.models", "show": "_show.show",
    "split": "_cut.split",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562). Raises `UsageError` where a package is missing."""
    if name not in _MODULES:
        raise AttributeError(f"module 'rpcsys.graph' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module(f"rpcsys.graph.{_MODULES[name]}"), name)
    except ImportError as error:
        raise UsageError(f"graphs need onnx, onnx-ir and onnxruntime ({error}); pip install 'rpcsys[graph]'") from None
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
