"""Checks the stages of a pipeline, and finds which tensors go where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rpcsys.errors import UsageError, there_are
from rpcsys.graph._build.leased_module import LeasedModule
from rpcsys.graph._build.stage_library import PlacedStage
from rpcsys.graph._pipeline.cpu_shares import available
from rpcsys.graph._pipeline.scheduler import StageNode, ordered

Function = Callable[..., Any]


@dataclass(frozen=True)
class PipelineStage:
    """A stage of a pipeline."""

    name: str
    #: A module, here or of a session, or any function. Several modules, such as on several devices, are replicas.
    module: Function | Sequence[Function]
    inputs: Sequence[str]  # names of tensors, in the order of the function's arguments
    outputs: Sequence[str]  # names of tensors, in the order of the function's results
    cpus: Sequence[int] = ()  # its threads are bound to these; by default all CPUs that the process may use
    replicas: int = 1  # threads that call it side by side; several modules have one each

    @property
    def functions(self) -> tuple[Function, ...]:
        """The function that each of its threads calls."""
        if callable(self.module):
            return (self.module,) * self.replicas
        return tuple(self.module)

    @property
    def segment(self) -> tuple[PlacedStage, ...]:
        """The stages of the model that its call runs on one leased board; none for any other stage."""
        module = self.functions[0]
        return module.library.stages if isinstance(module, LeasedModule) else ()

    @property
    def members(self) -> dict[str, None]:
        """Its own name, and the names of the stages in its segment."""
        return dict.fromkeys([self.name, *(stage.name for stage in self.segment)])


class Topology:
    """Checked stages, in an order in which they can run. Raises `UsageError` if they do not fit together."""

    def __init__(
        self, stages: Iterable[PipelineStage], inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None
    ) -> None:
        given = {stage.name: stage for stage in _checked(list(stages))}
        makers = {tensor: stage.name for stage in given.values() for tensor in stage.outputs}
        nodes = []
        for name, stage in given.items():
            needs = dict.fromkeys(makers[tensor] for tensor in stage.inputs if tensor in makers)
            nodes.append(StageNode(name, tuple(needs), len(stage.functions)))
        self.nodes = ordered(nodes)
        self.stages = [given[node.name] for node in self.nodes]
        taken = [tensor for stage in self.stages for tensor in stage.inputs]
        free = tuple(dict.fromkeys(tensor for tensor in taken if tensor not in makers))
        ends = tuple(tensor for tensor in makers if tensor not in taken)
        #: Of the whole. By default: inputs that no stage makes, in the order first taken; outputs that no stage takes.
        self.inputs = free if inputs is None else tuple(inputs)
        self.outputs = ends if outputs is None else tuple(outputs)
        self._check_ends(free, makers)
        #: How many stages take each tensor; an output of the whole counts once more.
        self.uses = Counter([*taken, *self.outputs])

    def _check_ends(self, free: Sequence[str], makers: Mapping[str, str]) -> None:
        for tensor in free:
            if tensor not in self.inputs:
                raise UsageError(f"no stage makes {tensor!r}, and it is no input of the pipeline")
        for tensor in self.inputs:
            if tensor in makers:
                raise UsageError(f"{tensor!r} is an input, and {makers[tensor]} makes it too; rename one")
        for tensor in self.outputs:
            if tensor not in makers and tensor not in self.inputs:
                raise UsageError(f"no stage makes the output {tensor!r}; {there_are(makers)}")

    def feeds(self, frame: Any) -> dict[str, Any]:
        """A frame's tensors by name: the frame is a mapping, a tuple in the inputs' order, or the one input itself.

        Raises `UsageError` if names or number of the tensors differ from the pipeline's inputs.
        """
        if isinstance(frame, Mapping):
            given = dict(frame)
        else:
            values = frame if isinstance(frame, tuple) else (frame,)
            given = dict(zip(self.inputs, values, strict=False))
            if len(values) != len(self.inputs):
                names = ", ".join(self.inputs)
                raise UsageError(f"a frame is {len(self.inputs)} tensor(s) ({names}), not {len(values)}")
        if given.keys() != set(self.inputs):
            raise UsageError(
                f"a frame is {', '.join(self.inputs)}, and this one {', '.join(map(str, given)) or 'nothing'}"
            )
        return given


def named_results(stage: PipelineStage, made: Any) -> dict[str, Any]:
    """The results of a stage's function by name. Raises `UsageError` if their number is not that of its outputs."""
    several = isinstance(made, (tuple, list)) and len(stage.outputs) != 1
    values = list(made) if several else [made]
    if len(values) != len(stage.outputs):
        raise UsageError(f"it gave {len(values)} output(s), not {len(stage.outputs)}: {', '.join(stage.outputs)}")
    return dict(zip(stage.outputs, values, strict=True))


def _checked(stages: list[PipelineStage]) -> list[PipelineStage]:
    if not stages:
        raise UsageError("a pipeline has one stage or more")
    _once((stage.name for stage in stages), "stages are called")
    _once((tensor for stage in stages for tensor in stage.outputs), "stages make the tensor")
    here = available()
    for stage in stages:
        given = [stage.module] if callable(stage.module) else stage.module
        if not isinstance(given, Sequence) or not given or not all(map(callable, given)):
            raise UsageError(f"stage {stage.name!r} has nothing to call: give a module, a function, or several")
        if not here.issuperset(stage.cpus):
            lacking = ", ".join(map(str, sorted(set(stage.cpus) - here)))
            raise UsageError(f"stage {stage.name!r} cannot run on CPU {lacking}: this process has {sorted(here)}")
    return stages


def _once(names: Iterable[str], what: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"{count} {what} {name!r}; rename all but one")
