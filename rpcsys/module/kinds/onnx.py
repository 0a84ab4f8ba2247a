"""Kind ``rpcsys.onnx``: an ONNX model that onnxruntime runs, or the reference evaluator if onnxruntime cannot.

The model is stored without its larger weights; these follow it, each aligned so that it can be mapped. Weights that
models share are in a module of kind ``rpcsys.params`` that each imports; a model that lacks them can be loaded.
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from rpcsys import part
from rpcsys.errors import ModelError, ProfileNotSupported, RemoteArgumentError, UsageError
from rpcsys.module import packed
from rpcsys.module.kinds import onnx_session
from rpcsys.module.kinds.onnx_profile import ProfileFile
from rpcsys.module.kinds.onnx_proto import NUMBERS
from rpcsys.module.kinds.onnx_providers import MEMORIES, checked
from rpcsys.module.kinds.onnx_session import Model, OnnxWeight, SessionRunner
from rpcsys.module.kinds.params import ParamsModule, listed, listing
from rpcsys.module.kinds.values import Value
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Module
from rpcsys.module.placement import on_host
from rpcsys.module.profiler import Profiler
from rpcsys.module.registry import Context
from rpcsys.wire.device_names import OPENVINO

if TYPE_CHECKING:
    from rpcsys.module.kinds.onnx_model import ModelLike

KIND = "rpcsys.onnx"
#: Imported when needed: importing onnx is slow, and few boards have it.
_REFERENCE, _MODEL = "rpcsys.module.kinds.reference", "rpcsys.module.kinds.onnx_model"
_OPENVINO, _DEVICES = "rpcsys.module.kinds.onnx_openvino", "rpcsys.module.kinds.onnx_devices"
_MAX_PROTO = 1 << 28  # bytes of an unpacked model without its weights: a hundred times the largest known one


class OnnxModule(Module):
    """One model. ``main`` takes the inputs in order and returns the outputs; many threads may call it."""

    METHODS: ClassVar[Mapping[str, str]] = {"main": "_main"}

    def __init__(
        self, model: Callable[[], Model], imports: Sequence[Module] = (), *, runner: Optional[SessionRunner] = None,
        name: str = "the model", device: str = "", threads: int = 0, opener: Optional[Callable[..., Any]] = None,
    ) -> None:  # fmt: skip
        super().__init__(KIND, imports=imports)
        self.device = device
        self._threads = threads  # of a call, 0 for as many as the model says
        self._model = model
        self._name = name
        self._opener = opener  # opens the file that ``runner`` has open, with more options
        self._runner: Any = None
        self._opening = threading.Lock()
        if runner is not None:
            self._take(runner)

    @property
    def runtime(self) -> str:
        """The runtime that runs it: ``"onnxruntime"`` or ``"reference"``."""
        return str(self._ready().runtime)

    @property
    def model(self) -> Model:
        """The parts of the model to save. Raises `UsageError`, and ImportError without the package onnx."""
        model = self._model()
        options = {**model.options, "threads": self._threads} if self._threads else model.options
        if options.get("device", "") != self.device:
            options = {key: value for key, value in options.items() if key not in ("device", "providers")}
            options = {**options, "device": self.device} if self.device else options
        return model if options is model.options else model._replace(options=options)

    def place(self, device: str) -> None:
        """Run there; whether it can is known when it is linked."""
        if self.device != checked(device):
            self.device, self._runner, self._opener = checked(device), None, None

    def use_threads(self, threads: int) -> bool:
        """Run each call in so many threads; onnx's reference evaluator has no such setting."""
        if self._model().options.get("runtime") == "reference":
            return False
        self._threads, self._runner, self._opener = threads, None, None
        return True

    def link(self) -> None:
        """Prepare it to run, if the weights that it shares are there."""
        model = self.model
        if model.shared:
            self._runner = None  # the weights may have changed
        self.inputs, self.outputs = model.inputs, model.outputs
        if not self._missing(model):
            self._ready()

    def without_params(self) -> OnnxModule:
        """The same model without the weights that it shares; it runs after it has been given some and linked."""
        lone = OnnxModule(self._model, name=self._name, device=self.device, threads=self._threads)
        lone.inputs, lone.outputs = self.inputs, self.outputs
        return lone

    def release(self) -> None:
        super().release()
        self._runner = None

    def describe(self) -> Dict[str, Any]:
        return {"kind": self.kind, "functions": ["main"], "inputs": self.inputs, "outputs": self.outputs}

    def run_main(self, inputs: Mapping[str, Any], outputs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """Run by names; returns the outputs in ``wanted``, all if None. Raises `RemoteArgumentError`."""
        runner = self._ready()
        known = {value.name: value for value in runner.inputs + runner.optional}
        for name in inputs:
            if name not in known:
                raise RemoteArgumentError(f"the model has no input {name!r}; it has {_listed(known)}")
        for value in runner.inputs:
            if value.name not in inputs and not value.optional:
                raise RemoteArgumentError(f"input {value.name!r} is missing; the model wants {_listed(known)}")
        names = [value.name for value in runner.outputs]
        wanted = names if outputs is None else list(outputs)
        for name in wanted:
            if name not in names:
                raise RemoteArgumentError(f"the model has no output {name!r}; it has {_listed(names)}")
        feeds = _feeds(runner, ((known[name], value) for name, value in inputs.items()))
        return dict(zip(wanted, runner.run(wanted, feeds)))

    def _main(self, *args: Any) -> Any:
        runner = self._runner or self._ready()
        inputs: List[Value] = runner.inputs
        if len(args) != len(inputs):
            names = _listed(value.name for value in inputs)
            raise RemoteArgumentError(f"the model takes {len(inputs)} input(s), not {len(args)}: {names}")
        feeds = _feeds(runner, zip(inputs, args))
        results = runner.run([value.name for value in runner.outputs], feeds)
        return results[0] if len(results) == 1 else tuple(results)

    def _ready(self) -> Any:
        with self._opening:  # several threads share one runner
            if self._runner is None:
                self.check_open()
                self._take(self._open())
            return self._runner

    def own_profiler(self, name: str, folder: str) -> Profiler:
        runtime, opener = self.runtime, self._opener or self._open
        if runtime == "reference":
            raise ProfileNotSupported(f"{self._name} is run by onnx's reference evaluator; install onnxruntime there")
        noted: Any
        if runtime == SessionRunner.runtime:
            noted = ProfileFile(folder, lambda prefix: opener(profile=prefix))
            runner = noted.runner
        else:
            runtime, runner = "OpenVINO", opener(profile=True)
            noted = runner.counters
        module = OnnxModule(self._model, runner=runner, name=self._name)
        return Profiler(runtime, module.function(name), noted.runs)

    def _open(self, **more: Any) -> Any:
        model, name = self.model, self._name
        missing = self._missing(model)
        if missing:
            how = "they were saved apart; give them, as with rpcsys.graph.create(json, library, params)"
            raise ModelError(f"{name} lacks {len(missing)} of its weights ({_listed(missing[:5])}): {how}")
        weights = {name: OnnxWeight(tensor, model.file) for name, tensor in model.weights.items()}
        weights.update(self._shared(model))
        proto = bytes(model.proto)

        def by_reference() -> Any:
            return part(_REFERENCE).of_bytes(proto, {name: weight.tensor for name, weight in weights.items()})

        if model.options.get("runtime") == "reference":
            return _first(name, "", by_reference)
        options = {**model.options, **more}
        runtime = _runtime(options, name)
        alone = self.device or self._threads or more  # onnx's reference evaluator has none of them
        makers = [lambda: runtime.of_bytes(proto, weights, options)] + [by_reference] * (not alone)
        return _first(name, "", *makers)

    def _take(self, runner: Any) -> None:
        self._runner = runner
        self.inputs = [value.describe() for value in runner.inputs]
        self.outputs = [value.describe() for value in runner.outputs]

    def _shared(self, model: Model) -> Dict[str, OnnxWeight]:
        found = {}
        for holder in self.imports[::-1]:
            if isinstance(holder, ParamsModule):
                both = [name for name in model.shared if name in holder.tensors]
                found.update({name: OnnxWeight(holder.tensors[name], holder.file) for name in both})
        return found

    def _missing(self, model: Model) -> List[str]:
        """Names of shared weights that no import has. Raises `ModelError` for one of another type or shape."""
        found = self._shared(model)
        for name, weight in found.items():
            want, have = model.shared[name], (weight.tensor.dtype, weight.tensor.shape)
            if want != have:
                raise ModelError("{} wants weight {!r} as {} {}, and has {} {}".format(self._name, name, *want, *have))
        return [name for name in model.shared if name not in found]


def load(path: str, name: str, device: str = "", threads: int = 0) -> OnnxModule:
    """Load the model at ``path``; messages call it ``name``. Raises `ModelError`, in one line."""
    device = checked(device) if device else ""
    options = {key: value for key, value in (("device", device), ("threads", threads)) if value}
    runtime = _runtime(options, name)

    def opener(**more: Any) -> Any:
        return runtime.of_file(path, {**options, **more})

    runner = _first(name, path, *[opener] + [lambda: part(_REFERENCE).of_file(path)] * (not options))
    return OnnxModule(
        lambda: part(_MODEL).parts(path), runner=runner, name=name, device=device, threads=threads, opener=opener
    )


def _runtime(options: Mapping[str, Any], name: str) -> Any:
    """What opens models with these options: ``of_file``, ``of_bytes``. Raises `ModelError` if nothing here can."""
    device = options.get("device", "")
    complaint = onnx_session.complaint(options)
    if complaint and device.startswith(OPENVINO):
        try:
            runtime = part(_OPENVINO)
        except ImportError:
            raise ModelError(f"{name} {complaint}") from None
        complaint = runtime.complaint(device)
    else:
        runtime = part(_DEVICES) if device.partition(":")[0] in MEMORIES else onnx_session
    if complaint:
        raise ModelError(f"{name} {complaint}")
    return runtime


def _feeds(runner: Any, given: Iterable[Tuple[Any, Any]]) -> Dict[str, Any]:
    """The inputs by name, checked; in the host's memory, unless the runner takes them from a device's."""
    return {value.name: value.check(arg if runner.on_device else on_host(arg)) for value, arg in given}


def _first(name: str, path: str, *makers: Callable[[], Any]) -> Any:
    """The runner of the first maker that succeeds. If none does, raises `ModelError` with the first one's message."""
    said = []
    for make in makers:
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - onnxruntime has a class for each status; onnx may be missing
            said.append(str(error).replace(path, name) if path else str(error))
    why = " ".join(said[0].split())[:400]
    again = "; export or copy it again" if "protobuf" in why.lower() else ""
    raise ModelError(f"{name} cannot be loaded: {why}{again}")


def onnx_module(model: ModelLike, *, params: Optional[ParamsModule] = None, **options: Any) -> OnnxModule:
    """Make a module that runs ``model``: a path, bytes, or a model of onnx or onnx-ir.

    ``params``: the module shares these weights where name and contents are equal, instead of its own.
    ``options``: ``cpus`` to bind it to (a list of numbers), ``threads`` (by default one for each of those CPUs, or each
    that the process may use), ``level`` of optimisation (``"off"``, ``"basic"``, ``"extended"`` or ``"all"``, the
    default), ``providers`` of onnxruntime, or a ``device`` for which it finds a provider (``"cuda:0"``,
    ``"openvino:GPU"``); ``runtime="reference"`` uses onnx's reference evaluator instead.

    Raises `UsageError` for a model that cannot be read, and for invalid options.
    """
    try:
        checked_options = onnx_session.options_of(options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    made: Model = part(_MODEL).parts(model, checked_options, params.tensors if params else {})
    module = OnnxModule(
        lambda: made, [params] if params and made.shared else [], device=checked_options.get("device", "")
    )
    module.inputs, module.outputs = made.inputs, made.outputs
    return module


def save_to_bytes(module: OnnxModule, offset: int) -> Sequence[Buffer]:
    """The model and its own weights in pieces, without copies. Raises `UsageError`."""
    model = module.model
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
    """Load the model; its session is opened when it is linked. Raises `FormatError`."""
    about, buffers = packed.unpack(data)
    if not buffers:
        raise FormatError("is broken (an ONNX module has no model)")
    weights = listed(about.get("weights"), buffers[1:])
    for name, tensor in weights.items():
        if tensor.dtype not in NUMBERS:
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
    return OnnxModule(lambda: model, name=context.name, device=options.get("device", ""))


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
