"""Turns the stages that a pipeline was given, in any form, into `PipelineStage`s."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from rpcsys import client
from rpcsys.errors import UsageError, there_are
from rpcsys.graph._build.build import build
from rpcsys.graph._build.leased_module import LeasedModule
from rpcsys.graph._build.targets import OnnxRuntime
from rpcsys.graph._ir.stage import Stages, check_by_stage
from rpcsys.graph._pipeline.cpu_shares import shared
from rpcsys.graph._pipeline.topology import PipelineStage
from rpcsys.module import Module, placement
from rpcsys.module.kinds.graph import GraphModule
from rpcsys.module.kinds.remote import RemoteFunctionModule

CALLS = 4  # default number of calls under way to a stage on a server: keeps the network and the server busy
_STATELESS = ("rpcsys.onnx", "rpcsys.graph")  # kinds of modules on a device whose calls may run in any order

Cpus: TypeAlias = Mapping[str, Sequence[int]]
#: A stage given by hand; the tuple is (name, module, inputs, outputs).
Given: TypeAlias = PipelineStage | tuple[str, Callable[..., Any], Sequence[str], Sequence[str]]


class ResolvedStages(NamedTuple):
    """Stages, the whole's tensors if known, and the modules that were made for the pipeline."""

    stages: Sequence[PipelineStage]
    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None
    owned: Sequence[Module] = ()


def resolve(
    given: Stages | Module | Iterable[Given], targets: Any, inputs: Sequence[str] | None, outputs: Sequence[str] | None,
    cpus: Cpus, replicas: Mapping[str, int],
) -> ResolvedStages:  # fmt: skip
    """The stages of a pipeline's arguments (see `Pipeline`). Raises `UsageError`, and what `build` raises."""
    if isinstance(given, (Stages, Module)) and (inputs is not None or outputs is not None):
        raise UsageError("inputs and outputs are for stages given one by one; these have their own")
    if targets is not None and not isinstance(given, Stages):
        raise UsageError("targets are for stages of graph.split; these are built already")
    _check(cpus, replicas)
    if isinstance(given, Stages):
        staged = _built(given, targets, cpus, replicas)
    elif isinstance(given, Module):
        staged = _of_graph(given)
    else:
        staged = ResolvedStages(_by_hand(given), inputs, outputs)
    placed = _placed(staged.stages, cpus, replicas)
    # The modules of a leased stage's other replicas were made here.
    before = {function for stage in staged.stages for function in stage.functions}
    after = dict.fromkeys(function for stage in placed for function in stage.functions if function not in before)
    more = [function for function in after if isinstance(function, LeasedModule)]
    return staged._replace(stages=placed, owned=[*staged.owned, *more])


def _check(cpus: Any, replicas: Any) -> None:
    check_by_stage("cpus", cpus, "[0, 1]")
    check_by_stage("replicas", replicas, "2")
    for name, some in cpus.items():
        if not isinstance(some, Iterable) or not all(isinstance(cpu, int) for cpu in some):
            raise UsageError(f"the CPUs of stage {name!r} are a list of numbers, such as [0, 1], not {some!r}")
    for name, count in replicas.items():
        if not isinstance(count, int):
            raise UsageError(f"stage {name!r} needs a whole number of replicas, not {count!r}")


def _by_hand(given: Any) -> list[PipelineStage]:
    if not isinstance(given, Iterable):
        forms = "stages of graph.split, a module of graph.build, or stages one by one"
        raise UsageError(f"a pipeline takes {forms}, not {type(given).__name__}")
    stages = list(given)
    if not all(isinstance(stage, PipelineStage) or (isinstance(stage, tuple) and len(stage) == 4) for stage in stages):
        raise UsageError("a stage is a PipelineStage, or a tuple of its name, module, inputs and outputs")
    return [stage if isinstance(stage, PipelineStage) else PipelineStage(*stage) for stage in stages]


def _built(stages: Stages, targets: Any, cpus: Cpus, replicas: Mapping[str, int]) -> ResolvedStages:
    given = targets if isinstance(targets, Mapping) else dict.fromkeys((s.name for s in stages), targets)
    wrapped = {name: _as_module(target) for name, target in shared(stages, given, cpus, replicas).items()}
    whole = build(stages, wrapped)
    foreign = [target for target in wrapped.values() if isinstance(target, Module)]
    staged = _of_graph(whole)
    owned = [module for module in whole.imports if all(module is not other for other in foreign)]
    cpus = {name: target.cpus for name, target in wrapped.items() if isinstance(target, OnnxRuntime)}
    placed = [replace(stage, cpus=cpus.get(stage.name, ())) for stage in staged.stages]
    return staged._replace(stages=placed, owned=owned)


def _as_module(target: Any) -> Any:
    """A function, such as one of a session, as a module; any other value unchanged."""
    function = callable(target) and not isinstance(target, Module)
    return Module("function", {"main": target}) if function else target


def _of_graph(module: Module) -> ResolvedStages:
    if not isinstance(module, GraphModule):
        raise UsageError(f"a module of kind {module.kind} has no stages; a pipeline takes what graph.build gives")
    stages = []
    for stage in module.graph["stages"]:
        if "makes" in stage or not set(stage["inputs"]).isdisjoint(module.graph["weights"]):
            needs = "give a pipeline a function around it that takes and gives tensors"
            raise UsageError(f"stage {stage['name']!r} writes into its arguments or takes weights; {needs}")
        imported = module.imports[stage["module"]]
        whole = isinstance(imported, (LeasedModule, RemoteFunctionModule)) and stage["function"] == "main"
        run = imported if whole else on_device(imported, imported.function(stage["function"]))
        stages.append(PipelineStage(stage["name"], run, stage["inputs"], stage["outputs"]))
    inputs, outputs = ([value["name"] for value in values] for values in (module.inputs, module.outputs))
    return ResolvedStages(stages, inputs, outputs)


def on_device(module: Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``module``; if that runs on a device of this machine, in its turn, with results on the host."""
    if not module.devices:
        return function
    return lambda *args: placement.on_host(placement.one_device(module.devices, function, *args))


def _placed(stages: Sequence[PipelineStage], cpus: Cpus, replicas: Mapping[str, int]) -> list[PipelineStage]:
    calls = {name: stage.name for stage in stages for name in stage.members}
    for name in [*cpus, *replicas]:
        if name not in calls:
            raise UsageError(f"no stage {name!r}; {there_are(calls)}")
    chosen = {calls[name]: count for name, count in replicas.items()}
    placed = []
    for stage in stages:
        count = chosen.get(stage.name, stage.replicas)
        if count < 1:
            raise UsageError(f"stage {stage.name!r} needs one replica or more, not {count}")
        if stage.name in chosen and not callable(stage.module):
            raise UsageError(f"stage {stage.name!r} has a module for each replica already")
        stage = replace(stage, cpus=tuple(cpus.get(stage.name, stage.cpus)), replicas=count)
        placed.append(_with_threads(stage, explicit=stage.name in chosen or count > 1))
    return placed


def _with_threads(stage: PipelineStage, explicit: bool) -> PipelineStage:
    """The stage with enough threads to keep its device and the network busy; a leased stage's replicas are boards."""
    module = stage.module
    if isinstance(module, LeasedModule):
        boards = [module, *(module.replica(number) for number in range(1, stage.replicas))]
        return replace(stage, module=boards * module.library.calls, replicas=1)
    away = isinstance(module, client.RemoteModule) and module.kind in _STATELESS
    away = away or (isinstance(module, RemoteFunctionModule) and module.endpoint.repeatable)
    return replace(stage, replicas=CALLS) if away and not explicit else stage
