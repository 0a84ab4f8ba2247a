"""Kind ``rpcsys.graph``: stages, each a function of an imported module, and named tensors that flow between them.

It needs the standard library alone, if its stages do. Several threads may call it. It is stored as a JSON object (see
`graph_json.checked`), which `GraphModule.save_graph_json` also writes to a file.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import (
    Any,
    Callable,
    ClassVar,
    ContextManager,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from rpcsys.errors import ModelError, RemoteArgumentError, RemoteFunctionError, UsageError
from rpcsys.module import branches, packed, placement, stage_errors
from rpcsys.module.kinds.graph_json import checked
from rpcsys.module.kinds.params import KIND as PARAMS
from rpcsys.module.kinds.params import ParamsModule
from rpcsys.module.kinds.params import params as params_module
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Function, Module, running_call, walk
from rpcsys.module.profiler import Profiler
from rpcsys.module.registry import Context
from rpcsys.wire import dtypes
from rpcsys.wire.memory import Pool
from rpcsys.wire.tensor import Tensor, as_array, as_tensor

KIND = "rpcsys.graph"
Value = Dict[str, Any]
Extent = Union[int, str]

_AT_ONCE: ContextManager[Any] = contextlib.nullcontext()
#: Declared types of arrays that the graph checks; other types ("seq(tensor(float))") are checked by the stages.
_CHECKED = {*dtypes.ITEM_BYTES, "strings"}


class GraphStage(NamedTuple):
    """One function of a graph."""

    name: str  # its name in the graph
    module: Module  # the module that has the function
    inputs: Sequence[str]  # names of tensors, in the order of the function's arguments
    outputs: Sequence[str]  # names of tensors, in the order of the function's results
    function: str = "main"  # its name in the module
    #: For a native function, which writes into its outputs: dtypes and shapes of the arrays to pass for them.
    makes: Sequence[Tuple[str, Sequence[Extent]]] = ()
    #: Where it runs; "" where its module does.
    device: str = ""


Stage = GraphStage  # its public name


class _Step(NamedTuple):
    stage: Dict[str, Any]
    call: Callable[..., Any]
    drops: Sequence[str]  # tensors that no later step needs
    device: str  # where it runs, "" for the CPU
    named: bool  # whether its errors name it


class GraphModule(Module):
    """A graph: ``main`` takes its inputs in order and returns its outputs."""

    METHODS: ClassVar[Mapping[str, str]] = {"main": "_main"}

    def __init__(self, graph: Dict[str, Any], imports: Sequence[Module] = ()) -> None:
        """``graph`` has been checked (`checked`)."""
        super().__init__(KIND, imports=imports, inputs=graph["inputs"], outputs=graph["outputs"])
        self.graph = graph
        self._steps: List[_Step] = []
        self._several = False  # whether its stages run on several devices: then each waits for its turn on its own
        self._needs: branches.Needs = []  # of each stage, if some can run at the same time: the stages that it needs
        self._weights: Dict[str, Any] = {}

    def names(self) -> List[str]:
        return [*super().names(), *([self.graph["writes"]] if "writes" in self.graph else [])]

    def own(self, name: str) -> Optional[Function]:
        return self._write if name == self.graph.get("writes") else super().own(name)

    def own_profiler(self, name: str, folder: str) -> Profiler:
        if name != "main":
            return super().own_profiler(name, folder)
        from rpcsys.module.kinds import graph_profile  # few sessions pay for it

        twin = GraphModule(self.graph, self.imports)
        twin.link()
        stages = [
            graph_profile.ProfiledStage(stage["name"], self.imports[stage["module"]], stage["function"], call, folder)
            for stage, call, *_ in twin._steps
        ]
        twin._steps = [step._replace(call=stage) for step, stage in zip(twin._steps, stages)]
        return graph_profile.profiler(stages, twin.function("main"))

    def save_graph_json(self, path: Union[str, os.PathLike[str]]) -> None:
        """Write the graph as JSON, without its modules. Raises `UsageError` if the file cannot be written."""
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(self.graph, file, indent=1)
                file.write("\n")
        except OSError as error:
            raise UsageError(f"{os.fspath(path)} cannot be written: {error.strerror}") from None

    @property
    def library(self) -> Module:
        """The modules of its stages without shared weights, as one module to export separately."""
        from rpcsys.module.kinds.group import group

        stages = [module for module in self.imports if module.kind != PARAMS]
        return group(module.without_params() if hasattr(module, "without_params") else module for module in stages)

    @property
    def params(self) -> Optional[ParamsModule]:
        """The weights that it and its stages share, as one module to export separately; None if there are none."""
        holders = [module for module in walk(self) if isinstance(module, ParamsModule)]
        if len(holders) < 2:
            return holders[0] if holders else None
        return ParamsModule({name: tensor for holder in holders for name, tensor in holder.tensors.items()})

    def link(self) -> None:
        """Find each stage's function and the weights. Raises `ModelError` if one is missing."""
        kinds, wanted = [module.kind for module in self.imports], self.graph["imports"]
        if len(kinds) != len(wanted):
            got = f"{len(kinds)} ({', '.join(kinds) or 'none'})"
            raise ModelError(f"the graph imports {len(wanted)} modules ({', '.join(wanted)}), and got {got}")
        tensors: Dict[str, Tensor] = {}
        for module in self.imports:
            tensors.update(module.tensors if isinstance(module, ParamsModule) else {})
        missing = [name for name in self.graph["weights"] if name not in tensors]
        if missing:
            raise ModelError("the graph lacks the weights {}".format(", ".join(missing[:20])))
        self._weights = {name: as_array(tensors[name]) for name in self.graph["weights"]}
        last = {name: number for number, stage in enumerate(self.graph["stages"]) for name in stage["inputs"]}
        kept = {value["name"] for value in self.outputs}
        devices = [self._device(stage) for stage in self.graph["stages"]]
        self._several = len({device or placement.HOST for device in devices}) > 1
        made = {name: number for number, stage in enumerate(self.graph["stages"]) for name in stage["outputs"]}
        needs = [{made[name] for name in stage["inputs"] if name in made} for stage in self.graph["stages"]]
        self._needs = needs if branches.apart(needs, devices) else []
        steps = []
        for number, (stage, on) in enumerate(zip(self.graph["stages"], devices)):
            drops = [name for name in set(stage["inputs"]) - kept if last[name] == number]
            steps.append(_Step(stage, self._function(stage), drops, on, len(devices) > 1))
        self._steps = steps

    def release(self) -> None:
        super().release()
        self._steps, self._weights = [], {}

    @property
    def devices(self) -> Tuple[str, ...]:
        """The devices of its stages, in the order of the stages; the CPU is one of them where others are."""
        found = [self._device(stage) for stage in self.graph["stages"]]
        return tuple(dict.fromkeys(device or placement.HOST for device in found)) if any(found) else ()

    def attach(self, imports: Iterable[Module]) -> None:
        super().attach(imports)
        for stage in self.graph["stages"]:
            if stage.get("device") and stage["module"] < len(self.imports):
                self.imports[stage["module"]].place(stage["device"])

    def place(self, device: str) -> None:
        """Run all stages there that name no device of their own."""
        for stage in self.graph["stages"]:
            if not stage.get("device"):
                self.imports[stage["module"]].place(device)

    def _device(self, stage: Dict[str, Any]) -> str:
        """Where a stage runs: "" for the CPU. Raises `ModelError` for one whose own stages run on several devices."""
        devices = self.imports[stage["module"]].devices
        if len(devices) > 1:
            raise ModelError(f"stage {stage['name']!r} runs on {', '.join(devices)}; a stage runs on one device")
        return devices[0] if devices else ""

    def _function(self, stage: Dict[str, Any]) -> Callable[..., Any]:
        module = self.imports[stage["module"]]
        # Try the function, do not look it up: TVM's modules have functions that they do not list.
        try:
            function: Callable[..., Any] = module.function(stage["function"])
        except RemoteFunctionError:
            text = f"stage {stage['name']!r} runs the function {stage['function']!r}, and {module.kind} has "
            raise ModelError(text + (", ".join(module.functions[:20]) or "none")) from None
        return function

    def _main(self, *args: Any) -> Any:
        if not self._steps:
            self.check_open()
            self.link()
        if len(args) != len(self.inputs):
            names = ", ".join(value["name"] for value in self.inputs)
            raise RemoteArgumentError(f"the graph takes {len(self.inputs)} input(s), not {len(args)}: {names}")
        extents = _extents(self.inputs, args)
        values = dict(self._weights)
        values.update((value["name"], arg) for value, arg in zip(self.inputs, args))
        with placement.in_order() if self._several and running_call.order is None else _AT_ONCE:
            if self._needs:
                branches.run(self._needs, lambda number: _run(self._steps[number], values, extents, self._several))
            else:
                for step in self._steps:
                    _run(step, values, extents, self._several)
                    for name in step.drops:
                        values.pop(name, None)
        results = [values[value["name"]] for value in self.outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def _write(self, *args: Any) -> None:
        """Run ``main`` as native code calls it: with its inputs, then the arrays to write its outputs into."""
        split, places = len(self.inputs), len(self.outputs)
        if len(args) != split + places:
            text = f"takes {split} input(s) and {places} array(s) to write into, not {len(args)}"
            raise RemoteArgumentError(f"{self.graph['writes']} {text}")
        results = self._main(*args[:split])
        for value, result, place in zip(self.outputs, [results] if places == 1 else results, args[split:]):
            _copy(value["name"], result, place)


def _copy(name: str, result: Any, place: Any) -> None:
    """Write a result into the array ``place``. Raises `ModelError` if it is of another dtype or shape."""
    made = as_tensor(placement.on_host(result))
    wanted = place if isinstance(place, placement.DeviceArray) else as_tensor(place)
    if made is None or wanted is None or (made.dtype, made.shape) != (wanted.dtype, wanted.shape):
        raise ModelError(f"output {name!r} is {made}, and its place is {wanted}")
    if isinstance(wanted, placement.DeviceArray):
        wanted.fill(memoryview(made.data))
    elif made.nbytes:
        memoryview(wanted.data).cast("B")[:] = memoryview(made.data).cast("B")


def _run(step: _Step, values: Dict[str, Any], extents: Dict[str, int], in_turn: bool) -> None:
    """Run one stage, ``in_turn`` on its device: take its inputs from ``values``, store its outputs there."""
    args = [values[name] for name in step.stage["inputs"]]
    with placement.turn_on(step.device or placement.HOST) if in_turn else _AT_ONCE:
        results = _results(step, args, extents)
    values.update(zip(step.stage["outputs"], results))


def _results(step: _Step, args: List[Any], extents: Dict[str, int]) -> List[Any]:
    stage = step.stage
    if not step.device:
        args = placement.on_host(args)
    if "makes" in stage:
        made = [_array(value, extents) for value in stage["makes"]]
        _called(step, [*args, *made])
        return [as_array(tensor) for tensor in made]
    result = _called(step, args)
    results = list(result) if isinstance(result, (tuple, list)) and len(stage["outputs"]) != 1 else [result]
    if len(results) != len(stage["outputs"]):
        wanted = ", ".join(stage["outputs"])
        raise ModelError(f"stage {stage['name']!r} gave {len(results)} outputs, and the graph wants {wanted}")
    return results


def _called(step: _Step, args: List[Any]) -> Any:
    """Call a stage's function; what it raises names the stage, if there are several."""
    try:
        return step.call(*args)
    except Exception as error:
        if step.named:
            stage_errors.name(error, step.stage["name"])
        raise


def _array(value: Value, extents: Mapping[str, int]) -> Tensor:
    shape = [extents[extent] if isinstance(extent, str) else extent for extent in value["shape"]]
    size = dtypes.item_bytes(value["dtype"]) * dtypes.count(tuple(shape))
    return Tensor(value["dtype"], shape, Pool().take(size))


def _extents(inputs: Sequence[Value], args: Sequence[Any]) -> Dict[str, int]:
    """The extents in this call, by name. Raises `RemoteArgumentError` for an input of a wrong dtype or shape."""
    extents: Dict[str, int] = {}
    for value, arg in zip(inputs, args):
        tensor = as_tensor(arg) if value.get("dtype") in _CHECKED else None
        if tensor is None:
            continue
        wanted: List[Any] = value.get("shape") or []
        # An empty shape may mean a scalar or an unknown shape: onnxruntime reports both alike.
        fits = value["dtype"] == tensor.dtype and len(wanted) in (0, len(tensor.shape))
        for want, have in zip(wanted, tensor.shape):
            if isinstance(want, str):
                want = extents.setdefault(want, have)
            fits = fits and want in (None, have)
        if not fits:
            declared = ", ".join("?" if extent is None else str(extent) for extent in wanted)
            wants, got = f"{value['dtype']} [{declared}]", ", ".join(map(str, tensor.shape))
            raise RemoteArgumentError(f"input {value['name']!r} wants {wants}, and got {tensor.dtype} [{got}]")
    return extents


# ------------------------------------------------------------------ making one


def graph(
    stages: Sequence[Stage], inputs: Sequence[Value], outputs: Sequence[Value], *,
    params: Optional[ParamsModule] = None, writes: str = "",
) -> GraphModule:  # fmt: skip
    """Make a module that runs ``stages``, given in an order in which they can run.

    ``inputs``, ``outputs``: dicts with name, and with dtype and shape if known; each call checks the inputs whose shape
    is known. ``params``: weights that stages name among their inputs. ``writes``: the name of a further function, for
    native code to call: it takes the inputs, then the arrays that it writes the outputs into.

    Raises `UsageError` for a tensor that no stage makes, and for duplicate names.
    """
    imports: List[Module] = list({id(stage.module): stage.module for stage in stages}.values())
    numbers = {id(module): number for number, module in enumerate(imports)}
    if params is not None:
        imports.append(params)
    made = {value["name"] for value in inputs}.union(*(stage.outputs for stage in stages))
    known = set(params.tensors) if params is not None else set()
    described = {
        "inputs": list(inputs),
        "outputs": list(outputs),
        "weights": sorted({name for stage in stages for name in stage.inputs if name not in made} & known),
        "imports": [module.kind for module in imports],
        "stages": [_described(stage, numbers[id(stage.module)]) for stage in stages],
    }
    if writes:
        described["writes"] = writes
    try:
        return GraphModule(checked(described), imports)
    except FormatError as error:
        raise UsageError(f"the graph {error}") from None


def _described(stage: Stage, module: int) -> Dict[str, Any]:
    described: Dict[str, Any] = {"name": stage.name, "module": module, "function": stage.function}
    described.update(inputs=list(stage.inputs), outputs=list(stage.outputs))
    if stage.device:
        described["device"] = stage.device
    if stage.makes:
        described["makes"] = [{"dtype": dtype, "shape": list(shape)} for dtype, shape in stage.makes]
    return described


def create(
    text: str, library: Union[Module, Sequence[Module]], params: Union[Module, Mapping[str, Any], None] = None
) -> GraphModule:
    """Make a graph from its parts: the JSON, the modules of its stages, and its weights.

    ``library``: the modules, or one that imports them (`GraphModule.library`, saved and loaded). ``params``: the
    weights, a module of kind ``rpcsys.params`` or arrays by name; modules that were saved without their weights use
    these, too. Raises `UsageError` for parts that do not fit together.
    """
    weights = params if params is None or isinstance(params, Module) else params_module(params)
    try:
        described = checked(packed.parse(memoryview(text.encode())))
    except FormatError as error:
        raise UsageError(f"the graph {error}") from None
    if isinstance(library, Module):
        library = library.imports if library.kind == "rpcsys.group" else [library]
    left = [module for module in library if module.kind != PARAMS]
    imports = [weights if kind == PARAMS else left.pop(0) if left else None for kind in described["imports"]]
    if left or None in imports:
        wanted = ", ".join(described["imports"]) or "nothing"
        given = ", ".join(module.kind for module in [*library, *([weights] if weights else [])]) or "nothing"
        raise UsageError(f"the graph imports {wanted}, and was given {given}")
    made = GraphModule(described, [module for module in imports if module is not None])
    if weights is not None:
        for module in made.imports:
            if hasattr(module, "without_params"):
                module.attach([weights])
                module.link()
    made.link()
    return made


def save_to_bytes(module: GraphModule, offset: int) -> Sequence[Buffer]:
    """The graph as JSON; its stages' modules are its imports."""
    return packed.pack(module.graph, [], offset)


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """Load the graph; its stages are found when it is linked. Raises `FormatError`."""
    about, buffers = packed.unpack(data)
    if buffers:
        raise FormatError("is broken (a graph has bytes)")
    return GraphModule(checked(about))
