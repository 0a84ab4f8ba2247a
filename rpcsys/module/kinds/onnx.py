"""Kind ``rpcsys.onnx``: an ONNX model that onnxruntime runs, or the reference evaluator where that cannot.

Saved are the model without its larger weights, and beside it those weights, each where it can be mapped from; so
neither protobuf's limit of 2 GB nor a copy stands in the way. Weights that models share are in a module of kind
``rpcsys.params`` that each imports. A model whose shared weights are not there (they were saved apart) loads, and runs
once it has been given them.
"""

from __future__ import annotations

import threading
import zlib
from typing import Any, Callable, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from rpcsys.errors import ModelError, RemoteArgumentError, UsageError
from rpcsys.module import packed
from rpcsys.module.kinds import onnx_session
from rpcsys.module.kinds.onnx_session import Runner, Weight
from rpcsys.module.kinds.onnx_values import Value
from rpcsys.module.kinds.params import ParamsModule, listed, listing
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Module
from rpcsys.module.registry import Context, File
from rpcsys.wire.tensor import Tensor

KIND = "rpcsys.onnx"
#: Bytes of a model without its weights that are unpacked: a hundred times those of the largest known.
_MAX_PROTO = 1 << 28


class Model(NamedTuple):
    """A model in parts.

    Attributes
    ----------
    proto : the serialised ModelProto, without the weights that are apart
    weights : its own weights that are
    shared : names, types and shapes of the weights that it takes from what it imports
    inputs, outputs : what it takes and gives, as a client is told
    options : threads, CPUs, level and providers for onnxruntime, or another runtime
    file : the mapped file that ``weights`` are a part of, or None
    deflated : whether ``proto`` is to be saved compressed, so that nothing in it can be read at a glance
    """

    proto: Buffer
    weights: Dict[str, Tensor]
    shared: Dict[str, Tuple[str, Tuple[int, ...]]]
    inputs: List[Dict[str, Any]]
    outputs: List[Dict[str, Any]]
    options: Dict[str, Any]
    file: Optional[File] = None
    deflated: bool = False


class OnnxModule(Module):
    """One model. ``main`` takes the inputs in order and gives the outputs; it may be called by many threads.

    Attributes
    ----------
    runtime : what runs it, once it was needed: ``"onnxruntime"`` or ``"reference"``
    """

    METHODS: ClassVar[Mapping[str, str]] = {"main": "_main"}

    def __init__(
        self,
        model: Callable[[], Model],
        imports: Sequence[Module] = (),
        *,
        runner: Optional[Runner] = None,
        name: str = "the model",
    ) -> None:
        super().__init__(KIND, imports=imports)
        self._model = model
        self._name = name
        self._runner: Any = None
        self._opening = threading.Lock()
        if runner is not None:
            self._take(runner)

    @property
    def runtime(self) -> str:
        return str(self._ready().runtime)

    @property
    def model(self) -> Model:
        """The model in parts, to be saved. Raises `UsageError` where that takes the package onnx, and it is not there."""
        return self._model()

    def link(self) -> None:
        """Make it ready, if the weights that it shares are there."""
        model = self._model()
        if model.shared:
            self._runner = None  # they may be other ones than before
        self.inputs, self.outputs = model.inputs, model.outputs
        if not self._missing(model):
            self._ready()

    def without_params(self) -> OnnxModule:
        """The same model without the weights that it shares; it runs once it has been given some and linked."""
        lone = OnnxModule(self._model, name=self._name)
        lone.inputs, lone.outputs = self.inputs, self.outputs
        return lone

    def release(self) -> None:
        super().release()
        self._runner = None

    def describe(self) -> Dict[str, Any]:
        """kind, functions, inputs and outputs; a free extent is its name or None."""
        return {"kind": self.kind, "functions": ["main"], "inputs": self.inputs, "outputs": self.outputs}

    def run_main(self, inputs: Mapping[str, Any], outputs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """Run by names: the wanted outputs, all if None. Raises `RemoteArgumentError`."""
        runner = self._ready()
        known = {value.name: value for value in runner.inputs + runner.optional}
        for name in inputs:
            if name not in known:
                raise RemoteArgumentError(f"the model has no input {name!r}; it has {_listed(known)}")
        for value in runner.inputs:
            if value.name not in inputs and not value.optional:
                raise RemoteArgumentError(f"input {value.name!r} is missing; the model wants {_listed(known)}")
        names = [value.name for value in runner.outputs]
        for name in outputs if outputs is not None else ():
            if name not in names:
                raise RemoteArgumentError(f"the model has no output {name!r}; it has {_listed(names)}")
        wanted = list(outputs) if outputs is not None else names
        feeds = {name: known[name].check(value) for name, value in inputs.items()}
        return dict(zip(wanted, runner.run(wanted, feeds)))

    def _main(self, *args: Any) -> Any:
        runner = self._runner or self._ready()
        inputs: List[Value] = runner.inputs
        if len(args) != len(inputs):
            raise RemoteArgumentError(
                f"the model takes {len(inputs)} input(s), not {len(args)}: {_listed(value.name for value in inputs)}"
            )
        feeds = {value.name: value.check(arg) for value, arg in zip(inputs, args)}
        results = runner.run([value.name for value in runner.outputs], feeds)
        return results[0] if len(results) == 1 else tuple(results)

    # -------------------------------------------------------------- making it ready

    def _ready(self) -> Any:
        with self._opening:  # several threads that meet it first get one
            if self._runner is None:
                self.check_open()
                self._take(self._open())
            return self._runner

    def _open(self) -> Any:
        model = self._model()
        missing = self._missing(model)
        if missing:
            raise ModelError(
                f"{self._name} lacks {len(missing)} of its weights ({_listed(missing[:5])}): they were saved apart; "
                "give them, as with rpcsys.graph.create(json, library, params)"
            )
        weights = {name: Weight(tensor, model.file) for name, tensor in model.weights.items()}
        weights.update(self._shared(model))
        return _open(model, weights, self._name)

    def _take(self, runner: Any) -> None:
        self._runner = runner
        self.inputs = [value.describe() for value in runner.inputs]
        self.outputs = [value.describe() for value in runner.outputs]

    def _shared(self, model: Model) -> Dict[str, Weight]:
        homes = [module for module in self.imports if isinstance(module, ParamsModule)]
        return {
            name: Weight(home.tensors[name], home.file)
            for home in reversed(homes)
            for name in model.shared
            if name in home.tensors
        }

    def _missing(self, model: Model) -> List[str]:
        """Names of shared weights that nothing it imports has. Raises `ModelError` for one of another type or shape."""
        found = self._shared(model)
        for name, weight in found.items():
            want, have = model.shared[name], (weight.tensor.dtype, weight.tensor.shape)
            if want != have:
                raise ModelError("{} wants weight {!r} as {} {}, and has {} {}".format(self._name, name, *want, *have))
        return [name for name in model.shared if name not in found]


def load(path: str, name: str) -> OnnxModule:
    """Load the model at ``path``, ``name`` in messages. Raises `ModelError`, in one line."""

    def parts() -> Model:
        from rpcsys.module.kinds import onnx_model

        return onnx_model.parts(path)

    runner = _opened(lambda: onnx_session.of_file(path, {}), lambda: _reference_of_file(path), name, path)
    return OnnxModule(parts, runner=runner, name=name)


def _open(model: Model, weights: Dict[str, Weight], name: str) -> Any:
    proto = bytes(model.proto)

    def by_reference() -> Any:
        from rpcsys.module.kinds import reference

        return reference.of_bytes(proto, {name: weight.tensor for name, weight in weights.items()})

    if model.options.get("runtime") == "reference":
        return _opened(by_reference, by_reference, name)
    complaint = onnx_session.complaint(model.options)
    if complaint:
        raise ModelError(f"{name} {complaint}")
    return _opened(lambda: onnx_session.of_bytes(proto, weights, model.options), by_reference, name)


def _reference_of_file(path: str) -> Any:
    from rpcsys.module.kinds import reference

    return reference.of_file(path)


def _opened(by_runtime: Callable[[], Any], by_reference: Callable[[], Any], name: str, path: str = "") -> Any:
    """The runner that one of the two makes. Raises `ModelError` with what onnxruntime says where none can."""
    try:
        return by_runtime()
    except Exception as error:  # noqa: BLE001 - onnxruntime has a class of its own for each status
        why = " ".join((str(error).replace(path, name) if path else str(error)).split())
        cannot = ModelError(f"{name} cannot be loaded: {why[:400]}")
    try:
        return by_reference()
    except Exception:  # noqa: BLE001 - the package onnx is not there, or cannot run it either
        raise cannot from None


# ------------------------------------------------------------------ saving


def save_to_bytes(module: Module, offset: int) -> Sequence[Buffer]:
    """The model and its own weights, in pieces, none of them copied. Raises `UsageError`."""
    assert isinstance(module, OnnxModule)
    try:
        model = module.model
    except ModelError as error:
        raise UsageError(str(error.args[0])) from None
    about: Dict[str, Any] = {
        "inputs": model.inputs,
        "outputs": model.outputs,
        "options": model.options,
        "shared": [(name, *model.shared[name]) for name in sorted(model.shared)],
        "weights": listing(model.weights),
    }
    proto = model.proto
    if model.deflated:
        about["deflated"] = True
        proto = zlib.compress(proto, zlib.Z_BEST_COMPRESSION)
    return packed.pack(about, [proto, *(tensor.data for tensor in model.weights.values())], offset)


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """The model; it is opened when it is linked. Raises `FormatError`."""
    about, buffers = packed.unpack(data)
    if not buffers:
        raise FormatError("is broken (an ONNX module has no model)")
    weights = listed(about.get("weights"), buffers[1:])
    for name, tensor in weights.items():
        if not onnx_session.can_be_apart(tensor.dtype):
            raise FormatError(f"is broken (weight {name[:200]!r} is of a type that ONNX lacks)")
    try:
        options = onnx_session.options_of(about.get("options"))
    except ValueError as error:
        raise FormatError(f"is broken (an ONNX module's {error})") from None
    inputs, outputs = packed.declared(about.get("inputs")), packed.declared(about.get("outputs"))
    deflated = about.get("deflated") is True
    proto = _inflated(buffers[0]) if deflated else buffers[0]
    shared = _wanted(about.get("shared"))
    model = Model(proto, weights, shared, inputs, outputs, options, context.file, deflated)
    return OnnxModule(lambda: model, name=context.name)


def _inflated(data: memoryview) -> bytes:
    stream = zlib.decompressobj()
    try:
        proto = stream.decompress(data, _MAX_PROTO)
    except zlib.error:
        proto = b""
    if not stream.eof:
        raise FormatError("is broken (an ONNX module's model cannot be unpacked)")
    return proto


def _wanted(rows: Any) -> Dict[str, Tuple[str, Tuple[int, ...]]]:
    wanted: Dict[str, Tuple[str, Tuple[int, ...]]] = {}
    for row in rows if isinstance(rows, list) else [None]:
        if not isinstance(row, list) or [type(each) for each in row] != [str, str, list]:
            raise FormatError("is broken (an ONNX module lists weights that are none)")
        name, dtype, shape = row
        wanted[name] = (dtype, tuple(shape))
    return wanted


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names) or "none"
