"""ONNX graphs over devices: cut a model into stages, build each for where it runs.

    stages = graph.split("resnet50.onnx", ["r20"])
    model = graph.build(stages, {"stage1": graph.OnnxRuntime(cpus=[1])})
    module.export_library(model, "resnet50.so")

`samples` makes networks to try it with. Nothing is imported until it is used: sample networks need onnx alone,
and a missing package is an error that says what to type.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rpcsys.errors import UsageError

if TYPE_CHECKING:
    from rpcsys.graph.assembling import create
    from rpcsys.graph.building import build
    from rpcsys.graph.cutfinding import auto_cuts
    from rpcsys.graph.models import save
    from rpcsys.graph.offloading import Offload, offload
    from rpcsys.graph.partitioning import partition
    from rpcsys.graph.pipelining import Pipeline
    from rpcsys.graph.plans import Comparison, Plan, PlannedStage
    from rpcsys.graph.regions import annotate, annotated, operators
    from rpcsys.graph.showing import show
    from rpcsys.graph.splitting import split
    from rpcsys.graph.stage import Crossing, Stage, Stages
    from rpcsys.graph.support import supported
    from rpcsys.graph.targets import Leased, OnnxRuntime, Reference, Remote, Tvm
    from rpcsys.graph.types import TensorInfo
    from rpcsys.graph.weighing import Weighed, Weight, weigh
    from rpcsys.graph.wiring import PipelineStage

__all__ = [
    "Comparison",
    "Crossing",
    "Leased",
    "Offload",
    "OnnxRuntime",
    "Pipeline",
    "PipelineStage",
    "Plan",
    "PlannedStage",
    "Reference",
    "Remote",
    "Stage",
    "Stages",
    "TensorInfo",
    "Tvm",
    "Weighed",
    "Weight",
    "annotate",
    "annotated",
    "auto_cuts",
    "build",
    "create",
    "offload",
    "operators",
    "partition",
    "save",
    "show",
    "split",
    "supported",
    "weigh",
]

# No module here has the name of what it brings: importing one would put it in the other's place.
_HOMES = {
    "Comparison": "plans",
    "Crossing": "stage",
    "Plan": "plans",
    "PlannedStage": "plans",
    "Stage": "stage",
    "Stages": "stage",
    "TensorInfo": "types",
    "Leased": "targets",
    "OnnxRuntime": "targets",
    "Pipeline": "pipelining",
    "PipelineStage": "wiring",
    "Reference": "targets",
    "Remote": "targets",
    "Tvm": "targets",
    "auto_cuts": "cutfinding",
    "build": "building",
    "annotate": "regions",
    "annotated": "regions",
    "create": "assembling",
    "Offload": "offloading",
    "offload": "offloading",
    "Weighed": "weighing",
    "Weight": "weighing",
    "weigh": "weighing",
    "operators": "regions",
    "partition": "partitioning",
    "save": "models",
    "show": "showing",
    "split": "splitting",
    "supported": "support",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562). Raises `UsageError` where a package is missing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rpcsys.graph' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"rpcsys.graph.{_HOMES[name]}"), name)
    except ImportError as error:
        raise UsageError(
            f"graphs need onnx, onnx-ir and onnxruntime ({error}); pip install 'rpcsys[graph]'"
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
