"""Builds stages into modules: each for its target, and all of a model into one module that runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rpcsys.errors import UsageError
from rpcsys.graph._build.codec import Codec
from rpcsys.graph._build.leased_module import LeasedModule, StageLibrary
from rpcsys.graph._build.targets import Leased, OnnxRuntime, Reference, Remote, Target, Tvm, target_of
from rpcsys.graph._ir.stage import Stage, Stages, signature_of, tensor_spec
from rpcsys.module import Module, graph, onnx_module, params, weights_of
from rpcsys.module.kinds import graph as graph_kind
from rpcsys.module.kinds.params import ParamsModule
from rpcsys.module.kinds.remote import remote

_DEFAULT = "onnxruntime"


def build(stages: Stage | Stages, target: Target | str | Mapping[str, Target | str | Module] | None = None) -> Module:
    """A module that runs a stage, or all the stages of a model one after another.

    ``target`` is what to build for: a `Target` or its name; for several stages also a mapping by their names, in
    which a module stands for itself: one that another compiler made of the stage, taking and giving the stage's
    tensors in their order. What is not mapped is built for what the model's annotation says, else for onnxruntime.

    The module is run by the names of the whole's tensors, loads and exports as any (`rpcsys.module`), and holds
    a weight that several of the stages use once. An input with a default keeps that.

    Raises
    ------
    UsageError : no such target or stage, a stage the target cannot compile, a package that is missing, or an exact
        stage for another target than onnxruntime
    """
    if isinstance(stages, Stage):
        if isinstance(target, Mapping):
            raise UsageError("one stage has one target, not a mapping of them")
        return _built(stages, target or stages.target or _DEFAULT, None)
    targets = _targets(stages, target)
    shared = _shared_weights(stages, targets)
    built = {stage.name: _built(stage, targets[stage.name], shared) for stage in stages}
    return graph(
        [entry for stage in stages for entry in _entries(stage, built[stage.name], targets[stage.name])],
        [tensor_spec(tensor) for tensor in stages.inputs if tensor.required],
        [tensor_spec(tensor) for tensor in stages.outputs],
    )


def _targets(
    stages: Stages, given: Target | str | Mapping[str, Target | str | Module] | None
) -> dict[str, Target | str | Module]:
    if given is not None and not isinstance(given, Mapping):
        return {stage.name: given for stage in stages}
    for name in given or ():
        stages[name]
    return {stage.name: (given or {}).get(stage.name) or stage.target or _DEFAULT for stage in stages}


def _shared_weights(stages: Stages, targets: Mapping[str, Any]) -> ParamsModule | None:
    """The larger weights that two stages or more use, of those that keep theirs apart from their code."""
    apart = [
        stage
        for stage in stages
        if not isinstance(targets[stage.name], Module)
        and isinstance(_here(targets[stage.name]), (OnnxRuntime, Reference))
    ]
    uses = Counter(name for stage in apart for name in stage.model.graph.initializers)
    twice = {name for name, count in uses.items() if count > 1}
    users = [stage.model for stage in apart if not twice.isdisjoint(stage.model.graph.initializers)]
    weights = {name: tensor for name, tensor in weights_of(*users).items() if name in twice}
    return params(weights) if weights else None


def _here(given: Target | str) -> Target | None:
    """What runs here of a stage: of one that is offloaded, its fallback."""
    target = target_of(given)
    if isinstance(target, Remote):
        return None if target.fallback is None else target_of(target.fallback)
    return target


def _built(stage: Stage, given: Target | str | Module, shared: ParamsModule | None) -> Module:
    if isinstance(given, Module):
        return given
    target = target_of(given)
    if isinstance(target, Leased):
        return LeasedModule(StageLibrary(_built(stage, target.target, None), target), *signature_of(stage))
    if stage.exact and not isinstance(target, (OnnxRuntime, Remote)):
        raise UsageError(
            f"{stage.name} is exact: it gives the same bits as the whole in onnxruntime alone; split without exact=True"
        )
    if isinstance(target, Tvm):
        from rpcsys.graph._build import relax

        return graph([_entry(stage, relax.compiled(stage, target))], *signature_of(stage))
    if isinstance(target, Remote):
        return _remote(stage, target, shared)
    return onnx_module(stage.model, params=shared, **_options(stage, target))


def _remote(stage: Stage, target: Remote, shared: ParamsModule | None) -> Module:
    codec = Codec(target, signature_of(stage))
    fallback = None
    if target.fallback is not None:
        fallback = codec.there(stage.name, _built(stage, target.fallback, shared))
    inputs, outputs = codec.crossing
    return remote(
        target.function,
        serve=target.serve,
        key=target.key,
        tracker=target.tracker,
        address=target.address,
        wait_s=target.wait_s,
        deadline_s=target.deadline_s,
        repeatable=target.repeatable,
        inputs=inputs,
        outputs=outputs,
        encode=codec.ways,
        fallback=fallback,
    )


def _options(stage: Stage, target: OnnxRuntime | Reference) -> dict[str, Any]:
    if isinstance(target, Reference):
        return {"runtime": "reference"}
    options: dict[str, Any] = {"providers": [target.provider]}
    if target.threads is not None:
        options["threads"] = target.threads
    if target.cpus:
        options["cpus"] = list(target.cpus)
    if stage.exact:
        options["level"] = "basic"
    return options


def _entries(stage: Stage, module: Module, target: Target | str | Module | None = None) -> list[graph_kind.Stage]:
    if isinstance(target, Remote):
        return Codec(target, signature_of(stage)).here(stage.name, module)
    return [_entry(stage, module)]


def _entry(stage: Stage, module: Module) -> graph_kind.Stage:
    inputs, outputs = signature_of(stage)
    return graph_kind.Stage(
        stage.name, module, [value["name"] for value in inputs], [value["name"] for value in outputs]
    )
