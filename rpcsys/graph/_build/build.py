"""Builds stages into modules: each for its target, a whole model into one module, or both sides of an offload."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rpcsys.client.inference import urls
from rpcsys.errors import UsageError, one_line
from rpcsys.graph._build import repository
from rpcsys.graph._build.codec import Codec, stage_entry
from rpcsys.graph._build.decoding import decoding
from rpcsys.graph._build.leased_module import LeasedModule, StageLibrary
from rpcsys.graph._build.targets import Leased, OnnxRuntime, Reference, Remote, Target, Tvm, target_of
from rpcsys.graph._ir import models
from rpcsys.graph._ir.stage import Stage, Stages, check_by_stage, signature_of, tensor_spec
from rpcsys.module import Module, graph, library, load_module, onnx_module, params, weights_of
from rpcsys.module import toolchain as toolchains
from rpcsys.module.kinds import graph as graph_kind
from rpcsys.module.kinds.library import LibraryModule
from rpcsys.module.kinds.params import ParamsModule
from rpcsys.module.kinds.remote import remote

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
    targets = _targets(stages, target)
    shared = _shared_weights(stages, targets)
    entries: list[graph_kind.Stage] = []
    for stage in stages:
        chosen, signature = targets[stage.name], signature_of(stage)
        module = _built(stage, chosen, shared)
        if isinstance(chosen, Remote):
            entries += Codec(chosen, signature).here(stage.name, module)
        else:
            entries.append(stage_entry(stage.name, module, signature))
    inputs = [tensor_spec(tensor) for tensor in stages.inputs if tensor.required]
    return graph(entries, inputs, [tensor_spec(tensor) for tensor in stages.outputs])


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


def _built(stage: Stage, given: AnyTarget, shared: ParamsModule | None) -> Module:
    if isinstance(given, Module):
        return given
    target, signature = target_of(given), signature_of(stage)
    if isinstance(target, Leased):
        return LeasedModule(StageLibrary(_built(stage, target.target, None), target), *signature)
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


def _remote(stage: Stage, target: Remote, shared: ParamsModule | None) -> Module:
    codec = Codec(target, signature_of(stage))
    fallback = None
    if target.fallback is not None:
        fallback = codec.there(stage.name, _built(stage, target.fallback, shared))
    inputs, outputs = codec.crossing
    crossing = {"inputs": inputs, "outputs": outputs, "encode": codec.ways, "fallback": fallback}
    return remote(**{**vars(target), **crossing})


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
    try:
        import tvm
        from tvm.relax.frontend.onnx import from_onnx
    except ImportError as error:
        why = f"cannot be imported ({error}); pip install 'rpcsys[tvm]'"
        raise UsageError(f"TVM compiles the stage, and {why}") from None
    chain = toolchains.find(target.toolchain) if target.toolchain else None
    dtypes = {tensor.name: tensor.dtype for tensor in stage.inputs}
    try:
        with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of names that it drops; the stage keeps them
            program = from_onnx(models.to_proto(stage.model), dtype_dict=dtypes)
            kind = target.target if isinstance(target.target, str) else dict(target.target)
            executable = tvm.compile(program, target=tvm.target.Target(kind))
            path = Path(folder, f"{stage.name}.so")
            executable.export_library(str(path), **_linker(chain))
            return library(path.read_bytes(), name=path.name, target=chain.name if chain else "")
    except Exception as error:  # noqa: BLE001 - TVM raises any of Python's classes, and its own
        raise UsageError(f"TVM cannot compile {stage.name}: {one_line(error, 400)}") from None


def _linker(chain: toolchains.Toolchain | None) -> dict[str, Any]:
    """The options of TVM's export that choose the linker."""
    if chain is None:
        return {}
    from tvm.support import cc

    program, *options = chain.command(cxx=True)
    return {"fcompile": cc.cross_compiler(program, options=options)}
