"""Builds stages into modules: each for its target, a whole model into one module, or both sides of an offload."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rpcsys.client.inference import urls
from rpcsys.errors import UsageError
from rpcsys.graph._build import relax, repository
from rpcsys.graph._build.codec import Codec, stage_entry
from rpcsys.graph._build.decoding import decoding
from rpcsys.graph._build.leased_board import LeasedBoards, SharedBoards
from rpcsys.graph._build.leased_module import LeasedModule
from rpcsys.graph._build.segments import segments
from rpcsys.graph._build.stage_library import StageLibrary, checked
from rpcsys.graph._build.targets import Leased, OnnxRuntime, Reference, Remote, Target, Tvm, target_of
from rpcsys.graph._ir import models
from rpcsys.graph._ir.stage import Signature, Stage, Stages, check_by_stage, signature_of, tensor_spec
from rpcsys.module import Module, graph, load_module, onnx_module, params, weights_of
from rpcsys.module.kinds import graph as graph_kind
from rpcsys.module.kinds.library import LibraryModule
from rpcsys.module.kinds.params import ParamsModule

PathLike = str | os.PathLike[str]
AnyTarget = Target | str | Module  # a module is taken as it is

_DEFAULT = "onnxruntime"


@dataclass(frozen=True)
class Offload:
    """The device's side and the server's side of a model."""

    device: Module  # runs the whole model: its own stages here, each other stage by a call to its server
    parts: Mapping[str, Module]  # the module to deploy for each remote stage, by the stage's name
    models: Mapping[str, ServedModel]  # the same as models for inference servers; without those that functions decode

    def save_repository(self, folder: PathLike) -> None:
        """Write each part as a model that Triton, OpenVINO Model Server and MLServer load: ``FOLDER/NAME/VERSION/…``.

        NAME and VERSION are those of its URL; else NAME is what the deployed module, or the stage, is called.
        Raises `UsageError` for a part that functions decode, and for tensors that these servers do not take.
        """
        for name in self.parts.keys() - self.models.keys():
            raise UsageError(
                f"functions decode {name!r}, which no ONNX file has: encode its tensors as float16 or int8"
            )
        for model in self.models.values():
            repository.write_model(folder, *model)


class ServedModel(NamedTuple):
    """A part as an inference server has it."""

    name: str
    version: str
    stage: Stage


def build(stages: Stage | Stages, target: Target | str | Mapping[str, AnyTarget] | None = None) -> Module:
    """Build a stage, or all stages of a model, into one module that runs them one after another.

    ``target`` is a `Target` or its name. For several stages it may be a mapping by stage name. A module in this mapping
    is used as it is: another compiler made it of the stage, and it takes and gives the stage's tensors in their order.
    A stage without a target is built for the target in the model's annotation, else for onnxruntime.

    The module takes and gives the whole model's tensors by name, and is loaded and exported as any other
    (`rpcsys.module`). It holds a weight once, even if several stages use it. An input with a default keeps the default.

    Raises `UsageError` for a target or stage that does not exist, a stage that the target cannot compile, a missing
    package, and an exact stage for another target than onnxruntime.
    """
    if isinstance(stages, Stage):
        if isinstance(target, Mapping):
            raise UsageError("one stage has one target, not a mapping of them")
        return _built(stages, target or stages.target or _DEFAULT, None)
    return _built_all(stages, _targets(stages, target))


def _built_all(stages: Stages, targets: Mapping[str, AnyTarget], devices: Mapping[str, str] = {}) -> Module:
    """One module of all stages; ``devices`` are those of its board that run them, by the names of the stages."""
    shared = _shared_weights(stages, targets)
    leased = {name: checked(target) for name, target in targets.items() if isinstance(target, Leased)}
    boards = SharedBoards({name: target for name, target in leased.items() if target.device})
    entries: list[graph_kind.Stage] = []
    for names in segments({stage.name: stage.needs for stage in stages}, boards.of):
        part = [stages[name] for name in names]
        stage, chosen = part[0], targets[names[0]]
        if stage.name in boards.of:
            entries.append(_segment(stages, part, boards))
            continue
        module, signature = _inner(stage, chosen, shared), signature_of(stage)
        if isinstance(chosen, Remote):
            entries += Codec(chosen, signature).here(stage.name, module)
        else:
            entries.append(stage_entry(stage.name, module, signature, devices.get(stage.name, "")))
    inputs = [tensor_spec(tensor) for tensor in stages.inputs if tensor.required]
    return graph(entries, inputs, [tensor_spec(tensor) for tensor in stages.outputs])


def _segment(stages: Stages, part: Sequence[Stage], boards: SharedBoards) -> graph_kind.Stage:
    """Stages on devices of one leased board, as one stage: a call to a graph that is sent there."""
    leased = {stage.name: boards.leased[stage.name] for stage in part}
    library = segment_library(stages.part(part), leased)
    signature = Signature(library.built.inputs, library.built.outputs)
    return stage_entry(library.name, LeasedModule(library, boards.of[part[0].name], *signature), signature)


def segment_library(
    stages: Stages, leased: Mapping[str, Leased], built: Mapping[str, Module] | None = None
) -> StageLibrary:
    """The library of stages that are one call, by their targets; ``built``: their modules, if they are built already.

    Raises `UsageError` as `build` does.
    """
    targets: Mapping[str, AnyTarget] = {name: each.target for name, each in leased.items()}
    if built is not None:
        targets = built
    return StageLibrary(_built_all(stages, targets, {name: each.device for name, each in leased.items()}), leased)


def offload(stages: Stages, targets: Mapping[str, AnyTarget], served: Target | str = "onnxruntime") -> Offload:
    """Build both sides of a model, for `rpcsys.module.export_library`.

    ``targets`` are as for `build`, with `Remote` for each stage that runs on a server. ``served`` is the target of the
    remote stages on the server. The device knows a part only by its name, so a part can be built and deployed again
    at any time, for example with other weights.

    If no pair of functions encodes a part's tensors, the part may also be deployed as an ONNX file (`Stage.save`). The
    server then builds it for the runtime that it has.

    Raises `UsageError` as `build` does, and if no stage is remote.
    """
    check_by_stage("targets", targets, "graph.Remote(...)")
    remotes = {name: target for name, target in targets.items() if isinstance(target, Remote)}
    if not remotes:
        raise UsageError("no stage is for a server; give one graph.Remote(...) as its target")
    device = build(stages, targets)
    codecs = {name: Codec(remote, signature_of(stages[name])) for name, remote in remotes.items()}
    there = {name: _decoding(stages[name], codec) for name, codec in codecs.items()}
    parts = {name: codec.there(name, build(there[name], served)) for name, codec in codecs.items()}
    models = {name: _served_model(remotes[name], there[name]) for name, codec in codecs.items() if not codec.pairs}
    return Offload(device, parts, models)


def _decoding(stage: Stage, codec: Codec) -> Stage:
    """What the server runs of a stage: the stage, with the decoding that is its model's own."""
    return decoding(stage, codec.ways) if codec.in_model and codec.ways else stage


def _served_model(remote: Remote, stage: Stage) -> ServedModel:
    if not remote.is_url:
        return ServedModel(remote.serve or stage.name, "1", stage)
    url, *_ = urls.parse_urls(remote.function)
    return ServedModel(url.model, url.version if url.version.isdecimal() else "1", stage)


def create(
    json: PathLike, library: Module | Sequence[Module] | PathLike,
    params: Module | Mapping[str, Any] | PathLike | None = None,
) -> graph_kind.GraphModule:  # fmt: skip
    """Make a graph module from parts that are stored separately.

    ``json`` : the output of `GraphModule.save_graph_json`, as text or as the path of a file
    ``library`` : the modules of its stages, or one module that imports them; or the path of an exported library
    ``params`` : weights by name, or a module of kind ``rpcsys.params``; or the path of an exported library

    Raises `UsageError` for missing parts and parts that do not fit together, `ModelError` if a part cannot be loaded.
    """
    if isinstance(library, (str, os.PathLike)):
        library = load_module(library)
    if isinstance(params, (str, os.PathLike)):
        params = load_module(params)
    if isinstance(json, str) and json.lstrip().startswith("{"):
        return graph_kind.create(json, library, params)
    try:
        text = Path(json).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{os.fspath(json)} cannot be read: {why}") from None
    return graph_kind.create(text, library, params)


def _targets(stages: Stages, given: Target | str | Mapping[str, AnyTarget] | None) -> dict[str, AnyTarget]:
    if given is not None and not isinstance(given, Mapping):
        return dict.fromkeys((stage.name for stage in stages), given)
    for name in given or ():
        stages[name]
    return {stage.name: (given or {}).get(stage.name) or stage.target or _DEFAULT for stage in stages}


def _shared_weights(stages: Stages, targets: Mapping[str, AnyTarget]) -> ParamsModule | None:
    """The larger weights that two or more stages use; only stages that keep weights apart from code count."""
    apart = [stage.model for stage in stages if _keeps_weights_apart(targets[stage.name])]
    uses = Counter(name for model in apart for name in model.graph.initializers)
    twice = {name for name, count in uses.items() if count > 1}
    users = [model for model in apart if not twice.isdisjoint(model.graph.initializers)]
    weights = {name: tensor for name, tensor in weights_of(*users).items() if name in twice}
    return params(weights) if weights else None


def _keeps_weights_apart(given: AnyTarget | None) -> bool:
    """Whether the local module of a stage keeps its weights apart from its code; for a remote stage, its fallback."""
    if given is None or isinstance(given, Module):
        return False
    target = target_of(given)
    if isinstance(target, Remote):
        return _keeps_weights_apart(target.fallback)
    return isinstance(target, (OnnxRuntime, Reference))


def _inner(stage: Stage, given: AnyTarget, shared: ParamsModule | None) -> Module:
    """A stage's module within that of all stages, which declares the tensors and checks them."""
    target = None if isinstance(given, Module) or stage.exact else target_of(given)
    return _compiled(stage, target) if isinstance(target, Tvm) else _built(stage, given, shared)


def _built(stage: Stage, given: AnyTarget, shared: ParamsModule | None) -> Module:
    if isinstance(given, Module):
        return given
    target, signature = target_of(given), signature_of(stage)
    if isinstance(target, Leased):
        target = checked(target)
        library = StageLibrary(_on(target.device, stage, _built(stage, target.target, None)), {stage.name: target})
        return LeasedModule(library, LeasedBoards(target), *signature)
    if stage.exact and not isinstance(target, (OnnxRuntime, Remote)):
        text = f"{stage.name} is exact: it gives the same bits as the whole in onnxruntime alone"
        raise UsageError(f"{text}; split without exact=True")
    if isinstance(target, Tvm):
        compiled = _compiled(stage, target)
        if target.device:
            compiled.place(target.device)
        entry = stage_entry(stage.name, compiled, signature)._replace(device=target.device)
        return graph([entry], *signature)
    if isinstance(target, Remote):
        return _remote(stage, target, shared)
    return onnx_module(stage.model, params=shared, **_options(stage, target))


def _on(device: str, stage: Stage, module: Module) -> Module:
    """``module`` of a stage, placed on a device of its board where one is named."""
    signature = signature_of(stage)
    return graph([stage_entry(stage.name, module, signature, device)], *signature) if device else module


def _remote(stage: Stage, target: Remote, shared: ParamsModule | None) -> Module:
    fallback = None if target.fallback is None else _built(stage, target.fallback, shared)
    return Codec(target, signature_of(stage)).remote(stage.name, fallback)


def _options(stage: Stage, target: OnnxRuntime | Reference) -> dict[str, Any]:
    if isinstance(target, Reference):
        return {"runtime": "reference"}
    options: dict[str, Any] = {"device": target.device} if target.device else {"providers": [target.provider]}
    if target.threads is not None:
        options["threads"] = target.threads
    if target.cpus:
        options["cpus"] = list(target.cpus)
    if stage.exact:
        options["level"] = "off"  # it is a part of the model that onnxruntime made of the whole, at its level "basic"
    return options


def _compiled(stage: Stage, target: Tvm) -> LibraryModule:
    """Compile a stage with TVM's Relax into a library, weights inside; a device needs only TVM's runtime for it."""
    dtypes = {tensor.name: tensor.dtype for tensor in stage.inputs}

    def program() -> Any:
        from tvm.relax.frontend.onnx import from_onnx

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of names that it drops; the stage keeps them
            return relax.with_plain_names(from_onnx(models.to_proto(stage.model), dtype_dict=dtypes))

    return relax.compiled(program, target, stage.name)
