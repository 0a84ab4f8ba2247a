"""Kind ``rpcsys.graph``: stages, each a function of a module it imports, and how tensors flow between them by name.

What is saved is a JSON object, the same that `GraphModule.save_graph_json` writes for people::

    {"inputs":  [{"name": "image", "dtype": "uint8", "shape": ["h", "w", 3]}],
     "outputs": [{"name": "prob", "dtype": "float32", "shape": [1, 1000]}],
     "weights": ["mean"],
     "imports": ["_lib", "rpcsys.onnx", "rpcsys.params"],
     "stages":  [{"name": "prepare", "module": 0, "function": "prepare", "inputs": ["image", "mean"], "outputs": ["x"],
                  "makes": [{"dtype": "float32", "shape": [1, 3, "h", "w"]}]},
                 {"name": "network", "module": 1, "function": "main", "inputs": ["x"], "outputs": ["prob"]}]}

``module`` counts the imports. A stage takes inputs of the graph, outputs of earlier stages, and weights that an import of
kind ``rpcsys.params`` has. Native functions write into their outputs: ``makes`` says which arrays they are given for that,
behind their inputs; an extent there is a number or the name that an input's extent has.

Runs with the standard library alone, where its stages do. May be called by several threads.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from rpcsys.errors import ModelError, RemoteArgumentError, RemoteFunctionError, UsageError
from rpcsys.module import packed
from rpcsys.module.kinds.graph_form import checked
from rpcsys.module.kinds.params import KIND as PARAMS
from rpcsys.module.kinds.params import ParamsModule
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Module, walk
from rpcsys.module.registry import Context
from rpcsys.wire import dtypes
from rpcsys.wire.memory import Pool
from rpcsys.wire.tensor import Tensor, as_array, as_tensor

KIND = "rpcsys.graph"
Value = Dict[str, Any]
Extent = Union[int, str]


#: Declared types of arrays; other words ("seq(tensor(float))") are for the stages to check.
_CHECKED = {*dtypes.ITEM_BYTES, "strings"}


class Stage(NamedTuple):
    """One function of a graph.

    Attributes
    ----------
    name : what it is called in the graph
    module : whose function it is
    inputs, outputs : names of tensors, in the order of the function's arguments and results
    function : its name in the module
    makes : for a native function that writes into its outputs, their dtypes and shapes, in order; it is given arrays
        of those behind its inputs
    """

    name: str
    module: Module
    inputs: Sequence[str]
    outputs: Sequence[str]
    function: str = "main"
    makes: Sequence[Tuple[str, Sequence[Extent]]] = ()


class _Step(NamedTuple):
    """A stage that is ready to run. ``drops``: tensors that nothing needs behind it."""

    stage: Dict[str, Any]
    call: Callable[..., Any]
    drops: Sequence[str]


class GraphModule(Module):
    """A graph: ``main`` takes its inputs in order and gives its outputs."""

    METHODS: ClassVar[Mapping[str, str]] = {"main": "_main"}

    def __init__(self, graph: Dict[str, Any], imports: Sequence[Module] = ()) -> None:
        """``graph`` has been checked (`checked`)."""
        super().__init__(KIND, imports=imports, inputs=graph["inputs"], outputs=graph["outputs"])
        self.graph = graph
        self._steps: List[_Step] = []
        self._weights: Dict[str, Any] = {}

    def save_graph_json(self, path: Union[str, os.PathLike[str]]) -> None:
        """Write the graph itself, without its modules, as JSON. Raises `UsageError` where that cannot be."""
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(self.graph, file, indent=1)
                file.write("\n")
        except OSError as error:
            raise UsageError(f"{os.fspath(path)} cannot be written: {error.strerror}") from None

    @property
    def library(self) -> Module:
        """Its stages' modules without weights that they share, as one module to be exported apart."""
        from rpcsys.module.kinds.group import group

        return group(
            [
                module.without_params() if hasattr(module, "without_params") else module
                for module in self.imports
                if module.kind != PARAMS
            ]
        )

    @property
    def params(self) -> Optional[ParamsModule]:
        """The weights that it and its stages share, as one module to be exported apart; None where there are none."""
        homes = [module for module in walk(self) if isinstance(module, ParamsModule)]
        if len(homes) < 2:
            return homes[0] if homes else None
        return ParamsModule({name: tensor for home in homes for name, tensor in home.tensors.items()})

    def link(self) -> None:
        """Find each stage's function and the weights. Raises `ModelError` where one is not there."""
        kinds = [module.kind for module in self.imports]
        if len(kinds) != len(self.graph["imports"]):
            raise ModelError(
                "the graph imports {} modules ({}), and got {} ({})".format(
                    len(self.graph["imports"]), ", ".join(self.graph["imports"]), len(kinds), ", ".join(kinds) or "none"
                )
            )
        homes = [module for module in self.imports if isinstance(module, ParamsModule)]
        found = {
            name: as_array(home.tensors[name])
            for home in homes
            for name in self.graph["weights"]
            if name in home.tensors
        }
        missing = [name for name in self.graph["weights"] if name not in found]
        if missing:
            raise ModelError("the graph lacks the weights {}".format(", ".join(missing[:20])))
        self._weights = found
        last = {name: number for number, stage in enumerate(self.graph["stages"]) for name in stage["inputs"]}
        kept = {value["name"] for value in self.outputs}
        self._steps = [
            _Step(stage, self._function(stage), [name for name in set(stage["inputs"]) - kept if last[name] == number])
            for number, stage in enumerate(self.graph["stages"])
        ]

    def release(self) -> None:
        super().release()
        self._steps, self._weights = [], {}

    def _function(self, stage: Dict[str, Any]) -> Callable[..., Any]:
        module = self.imports[stage["module"]]
        # Tried, not looked up: TVM's modules have functions that they do not list.
        try:
            function: Callable[..., Any] = module.function(stage["function"])
        except RemoteFunctionError:
            raise ModelError(
                "stage {!r} runs the function {!r}, and {} has {}".format(
                    stage["name"], stage["function"], module.kind, ", ".join(module.functions[:20]) or "none"
                )
            ) from None
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
        for step in self._steps:
            _run(step, values, extents)
        results = [values[value["name"]] for value in self.outputs]
        return results[0] if len(results) == 1 else tuple(results)


def _run(step: _Step, values: Dict[str, Any], extents: Dict[str, int]) -> None:
    """One stage: takes its inputs from ``values`` and leaves its outputs there."""
    stage = step.stage
    args = [values[name] for name in stage["inputs"]]
    if "makes" in stage:
        made = [_array(value, extents) for value in stage["makes"]]
        step.call(*args, *made)
        results = [as_array(tensor) for tensor in made]
    else:
        result = step.call(*args)
        results = list(result) if isinstance(result, (tuple, list)) and len(stage["outputs"]) != 1 else [result]
        if len(results) != len(stage["outputs"]):
            raise ModelError(
                "stage {!r} gave {} outputs, and the graph wants {}".format(
                    stage["name"], len(results), ", ".join(stage["outputs"])
                )
            )
    values.update(zip(stage["outputs"], results))
    for name in step.drops:
        values.pop(name, None)


def _array(value: Value, extents: Mapping[str, int]) -> Tensor:
    shape = [extents[extent] if isinstance(extent, str) else extent for extent in value["shape"]]
    size = dtypes.item_bytes(value["dtype"]) * dtypes.count(tuple(shape))
    return Tensor(value["dtype"], shape, Pool().take(size))


def _extents(inputs: Sequence[Value], args: Sequence[Any]) -> Dict[str, int]:
    """What the named extents of the inputs are in this call. Raises `RemoteArgumentError` for a wrong dtype or shape."""
    extents: Dict[str, int] = {}
    for value, arg in zip(inputs, args):
        tensor = as_tensor(arg) if value.get("dtype") in _CHECKED else None
        if tensor is None:
            continue
        wanted: List[Any] = value.get("shape") or []
        # No shape may be that of a scalar, or one that is not known: onnxruntime says the same of both.
        fits = value["dtype"] == tensor.dtype and len(wanted) in (0, len(tensor.shape))
        for want, have in zip(wanted, tensor.shape):
            if isinstance(want, str):
                want = extents.setdefault(want, have)
            fits = fits and want in (None, have)
        if not fits:
            raise RemoteArgumentError(
                "input {!r} wants {} [{}], and got {} [{}]".format(
                    value["name"],
                    value["dtype"],
                    ", ".join("?" if extent is None else str(extent) for extent in wanted),
                    tensor.dtype,
                    ", ".join(map(str, tensor.shape)),
                )
            )
    return extents


# ------------------------------------------------------------------ making one


def graph(
    stages: Sequence[Stage], inputs: Sequence[Value], outputs: Sequence[Value], *, params: Optional[ParamsModule] = None
) -> GraphModule:
    """A module that runs ``stages``, in an order in which they can run.

    ``inputs``, ``outputs``: dicts with name, and dtype and shape where they are known; an input whose shape is
    known is checked in each call. ``params``: weights that stages name among their inputs.

    Raises `UsageError` for a tensor that nothing makes, and names that come twice.
    """
    imports: List[Module] = []
    for stage in stages:
        if all(stage.module is not module for module in imports):
            imports.append(stage.module)
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
    try:
        return GraphModule(checked(described), imports)
    except FormatError as error:
        raise UsageError(f"the graph {error}") from None


def _described(stage: Stage, module: int) -> Dict[str, Any]:
    described: Dict[str, Any] = {
        "name": stage.name,
        "module": module,
        "function": stage.function,
        "inputs": list(stage.inputs),
        "outputs": list(stage.outputs),
    }
    if stage.makes:
        described["makes"] = [{"dtype": dtype, "shape": list(shape)} for dtype, shape in stage.makes]
    return described


def create(
    text: str, library: Union[Module, Sequence[Module]], params: Union[Module, Mapping[str, Any], None] = None
) -> GraphModule:
    """A graph from its parts: the JSON, the modules of its stages, and its weights.

    ``library``: the modules, or one that imports them (`GraphModule.library`, saved and loaded). ``params``: the
    weights, a module of kind ``rpcsys.params`` or arrays by name; modules in the library whose weights were saved apart
    take theirs from there, too. Raises `UsageError` for parts that do not fit.
    """
    from rpcsys.module.kinds import params as params_kind

    weights = params if params is None or isinstance(params, Module) else params_kind.params(params)
    try:
        described = checked(packed.parse(memoryview(text.encode())))
    except FormatError as error:
        raise UsageError(f"the graph {error}") from None
    if isinstance(library, Module):
        library = library.imports if library.kind == "rpcsys.group" else [library]
    left = [module for module in library if module.kind != PARAMS]
    imports = [weights if kind == PARAMS else left.pop(0) if left else None for kind in described["imports"]]
    if left or None in imports:
        raise UsageError(
            "the graph imports {}, and was given {}".format(
                ", ".join(described["imports"]) or "nothing",
                ", ".join(module.kind for module in [*library, *([weights] if weights else [])]) or "nothing",
            )
        )
    made = GraphModule(described, [module for module in imports if module is not None])
    if weights is not None:
        for module in made.imports:
            if hasattr(module, "without_params"):
                module.attach([weights])
                module.link()
    made.link()
    return made


# ------------------------------------------------------------------ saving


def save_to_bytes(module: Module, offset: int) -> Sequence[Buffer]:
    """The graph as JSON; its stages are what it imports."""
    assert isinstance(module, GraphModule)
    return packed.pack(module.graph, [], offset)


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """The graph; its stages are found when it is linked. Raises `FormatError`."""
    about, buffers = packed.unpack(data)
    if buffers:
        raise FormatError("is broken (a graph has bytes)")
    return GraphModule(checked(about))
