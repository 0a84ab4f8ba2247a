"""Regions: nodes of a model, selected by name, by operator, by a test, or by marks in the model itself.

ONNX has a field for marks since IR version 11: a node's ``device_configurations`` give its pipeline stage, and the
model's give the device of each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from rpcsys.errors import UsageError
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.module.kinds.onnx_model import ModelLike, read

#: Nodes of a model: their names, names of tensors that they make, or a test of each node.
Region: TypeAlias = Iterable[str] | Callable[[ir.Node], bool]

CONFIGURATION = "rpcsys"  # the name of the configuration that `annotate` adds to the model
_ANNOTATIONS_SINCE = 11  # the IR version that brought device configurations
_DEFAULT_TARGET = "onnxruntime"


def operators(*names: str) -> Callable[[ir.Node], bool]:
    """A region of all nodes with these operators: ``operators("Conv", "com.microsoft::Gelu")``."""
    wanted = {tuple(name.rpartition("::")[::2]) for name in names}
    return lambda node: (node.domain, node.op_type) in wanted


def chosen(flow: Dataflow, region: Region) -> set[int]:
    """The nodes of ``region``. Raises `UsageError` for a name that no node has."""
    if callable(region):
        return {index for index, node in enumerate(flow.nodes) if region(node)}
    named = {value.name: index for index, node in enumerate(flow.nodes) for value in node.outputs if value.name}
    named.update((node.name, index) for index, node in enumerate(flow.nodes) if node.name)
    if not isinstance(region, Iterable):
        raise UsageError(f"a region is names of nodes and tensors, or a function of a node, not {region!r}")
    names = [region] if isinstance(region, str) else list(region)
    for name in names:
        if not isinstance(name, str) or name not in named:
            problem = f"no node of the model is called {name!r}, and none makes a tensor of that name"
            raise UsageError(f"{problem}; give a name that the model has, as viewers such as Netron show them")
    return {named[name] for name in names}


@dataclass(frozen=True)
class Annotation:
    """The pipeline stages that a model's nodes are marked with; a name selects one of several configurations."""

    configuration: str = ""


def annotated(configuration: str = "") -> Annotation:
    """The region argument of `partition` that selects the marks in the model itself."""
    return Annotation(configuration)


def annotate(
    model: ModelLike, regions: Mapping[int, Region], *, targets: Mapping[int, str] | None = None,
    configuration: str = CONFIGURATION,
) -> ir.Model:  # fmt: skip
    """Copy ``model`` and mark its nodes with pipeline stages; ``regions`` gives the nodes of each stage.

    ``targets`` gives what a stage is built for (``{1: "tvm"}``); it is stored as the name of the stage's device.
    Raises `UsageError` for a name that no node has, a node in two regions, and a stage below 0.
    """
    if not regions or min(regions) < 0:
        raise UsageError("regions needs stages from 0 up, each with its nodes: {0: [...], 1: [...]}")
    result = read(model)
    result.ir_version = max(result.ir_version, _ANNOTATIONS_SINCE)
    flow = Dataflow(result)
    if any(plan.name == configuration for plan in result.device_configurations):
        result.remove_device_configuration(configuration, cascade=True)
    names = [(targets or {}).get(stage, _DEFAULT_TARGET) for stage in range(max(regions) + 1)]
    plan = result.add_device_configuration(configuration, device_names=names)
    marked: dict[int, int] = {}
    for stage, region in regions.items():
        for index in chosen(flow, region):
            if marked.setdefault(index, stage) != stage:
                raise UsageError(f"node {flow.name(index)} is in the regions of stages {marked[index]} and {stage}")
            flow.nodes[index].set_pipeline_stage(plan, stage)
    return result


def marks(flow: Dataflow, annotation: Annotation) -> tuple[dict[int, int], dict[int, str]]:
    """The stage that each node is marked with, and the name of each stage's device.

    Raises `UsageError` if the model has no such annotation, or if it has several and none was named.
    """
    stages: dict[str, dict[int, int]] = {}
    for index, node in enumerate(flow.nodes):
        for mark in node.device_configurations:
            if mark.pipeline_stage is not None:
                plan = mark.configuration.name if mark.configuration else ""
                stages.setdefault(plan, {})[index] = mark.pipeline_stage
    name = _plan_name(annotation.configuration, list(stages))
    devices = next((plan.device_names for plan in flow.model.device_configurations if plan.name == name), ())
    return stages[name], dict(enumerate(devices))


def _plan_name(wanted: str, plans: list[str]) -> str:
    if wanted in plans:
        return wanted
    listed = ", ".join(map(repr, plans))
    if wanted:
        raise UsageError(f"the model has no plan {wanted!r} that marks pipeline stages; it has {listed or 'none'}")
    if not plans:
        raise UsageError("no node of the model is marked with a pipeline stage; graph.annotate marks them")
    if len(plans) > 1:
        raise UsageError(f"the model has several plans ({listed}); name one: annotated({plans[0]!r})")
    return plans[0]
