"""The targets that a stage can be built for, and the operators that a target supports."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir

from rpcsys.errors import UsageError
from rpcsys.graph._ir.models import bodies

Coder: TypeAlias = Callable[[Any], Any]  # makes an array from an array: a function, or a module
Encoding: TypeAlias = str | Mapping[str, str | tuple[Coder, Coder]]  # one encoding for all tensors, or one per name


@dataclass(frozen=True)
class OnnxRuntime:
    """onnxruntime, on the machine that loads the module.

    Attributes
    ----------
    threads : number of threads; by default one for each of its CPUs
    cpus : the CPUs it is bound to; by default all that the process may use
    provider : onnxruntime's name of the execution provider
    device : where it runs, such as ``"cuda:0"`` or ``"openvino:GPU"``, in place of a provider; "" for the CPU
    """

    threads: int | None = None
    cpus: Sequence[int] = ()
    provider: str = "CPUExecutionProvider"
    device: str = ""


@dataclass(frozen=True)
class Reference:
    """The reference evaluator of onnx: it has every operator of the standard, and is slow."""


@dataclass(frozen=True)
class Tvm:
    """Native code, compiled by TVM; a device with libtvm_ffi and libtvm_runtime runs it without a Python package.

    Attributes
    ----------
    target : TVM's target: its kind (``"llvm"``), or a mapping such as ``{"kind": "llvm", "mtriple":
        "aarch64-linux-gnu"}``
    toolchain : the linker's toolchain: a target's name (``"aarch64-linux-gnu"``) or the path of a CMake toolchain file;
        "" is this machine's own compiler
    device : where it runs, such as ``"opencl:1"``; by default the first device of the target's kind
    """

    target: str | Mapping[str, Any] = "llvm"
    toolchain: str = ""
    device: str = ""


@dataclass(frozen=True)
class Remote:
    """A function on a server that has the stage already: the device calls it, and the weights stay on the server.

    Attributes
    ----------
    function : its name; by default ``main`` of the deployed module. Or the URL of the stage as a model on an inference
        server, or several: ``http://HOST:PORT/v2/models/NAME``, ``grpc://HOST:PORT/NAME`` (`rpcsys.module.remote`)
    serve : the name of the deployed module (``rpcsys deploy``); "" for a function of the server's sessions
    key, tracker, address : the server: at ``address`` (``host:port``), or one that ``tracker`` knows; a function of
        sessions is leased there by ``key``
    encode : how the stage's inputs and outputs cross, by name: ``{"features": "int8+zlib"}``; or one encoding for all
        tensors that it applies to. Encodings: float16, int8, zlib, zstd, and one that rounds plus one that compresses.
        For `graph.offload`, also a pair of functions or modules: the first encodes here, the second decodes there.
        For a URL float16 and int8: `graph.offload` writes the decoding into the part's model. Outputs go as float16
    fallback : the target to build the stage for, to run it here while the server is away; None: calls wait instead
    wait_s : seconds that a call waits for a server to be free, or to come back
    deadline_s : seconds that a call may run there; 0 for no limit
    repeatable : whether to repeat a call whose connection was lost while it ran
    """

    function: str = ""
    key: str = ""
    tracker: str = ""
    address: str = ""
    wait_s: float = 60.0
    serve: str = ""
    encode: Encoding = ""
    fallback: OnnxRuntime | Reference | Tvm | str | None = None
    deadline_s: float = 0.0
    repeatable: bool = True

    @property
    def is_url(self) -> bool:
        """Whether it is a model on an inference server."""
        return "://" in self.function


@dataclass(frozen=True)
class Leased:
    """A board that is leased for the stage, which is then sent to it.

    Stages that name a ``device`` share one leased board, if key, tracker and ``board`` are the same. Neighbours among
    them are one call a frame, and what flows between them stays on the board.

    Attributes
    ----------
    key : the key of the boards
    tracker : the tracker to lease from: ``host:port``, ``(host, port)``, or the result of `rpcsys.connect_tracker`;
        "" for the environment's
    target : the target that the stage is built for there
    wait_s : seconds to wait for a free board
    calls : how many frames a pipeline has under way on it, so that the network and the board are both busy; at least
        two for each device that stages of one call name
    encode : how arrays cross, where the encoding applies: ``"float16"``, ``"int8+zlib"``, …
    deadline_s : seconds that a frame may run there, 0 for no limit; a frame that exceeds it fails, its session ends,
        and another board is leased
    device : the device of the board that runs the stage: ``"opencl:0"``; by default what the target says, and a board
        for this stage alone
    board : tells several boards of one key apart, for stages with a device: any name
    """

    key: str
    tracker: Any = ""
    target: OnnxRuntime | Reference | Tvm | str = "onnxruntime"
    wait_s: float = 60.0
    calls: int = 4
    encode: str = ""
    deadline_s: float = 0.0
    device: str = ""
    board: str = ""


Target: TypeAlias = OnnxRuntime | Reference | Tvm | Remote | Leased

_NAMED: dict[str, Target] = {"onnxruntime": OnnxRuntime(), "reference": Reference(), "tvm": Tvm()}


def target_of(given: Target | str) -> Target:
    """The target of a name: ``"onnxruntime"``, ``"reference"``, ``"tvm"``, or ``"tvm:"`` and TVM's target (a kind or
    JSON). Raises `UsageError` for any other.
    """
    known = f"{', '.join(_NAMED)}, tvm:TARGET, or an object such as graph.OnnxRuntime(cpus=[0])"
    if isinstance(given, Target):
        return given
    if not isinstance(given, str):
        raise UsageError(f"{given!r} is no target; there are {known}")
    if given in _NAMED:
        return _NAMED[given]
    kind, _, rest = given.partition(":")
    if kind == "tvm" and rest:
        if not rest.startswith("{"):
            return Tvm(rest)
        try:
            return Tvm(json.loads(rest))
        except ValueError as error:
            raise UsageError(f"{rest!r} is no target of TVM: {error}") from None
    raise UsageError(f"no target is called {given!r}; there are {known}")


def supported(target: Target | str) -> Callable[[ir.Node], bool]:
    """A test for nodes that ``target`` supports, for `partition`: usually with ``several=True``.

    TVM lists the operators that its importer converts, onnxruntime the kernels of a provider. A node with bodies passes
    if all nodes in them pass. A supported operator may still lack some types or attributes.
    Raises `UsageError` for a target without a list of operators, and if TVM or onnxruntime is not installed.
    """
    chosen = target_of(target)
    if isinstance(chosen, Tvm):
        known = _tvm_operators()
    elif isinstance(chosen, OnnxRuntime):
        known = _onnxruntime_operators(chosen.provider)
    else:
        raise UsageError("only TVM and onnxruntime have a list of operators; graph.operators(...) takes one of yours")

    def has(node: ir.Node) -> bool:
        inner = (each for body in bodies(node) for each in body)
        return (node.domain, node.op_type) in known and all(map(has, inner))

    return has


def _tvm_operators() -> Collection[tuple[str, str]]:
    try:
        from tvm.relax.frontend.onnx import onnx_frontend
    except ImportError as error:
        raise UsageError(f"TVM cannot be imported ({error}); pip install 'rpcsys[tvm]'") from None
    table = getattr(onnx_frontend, "_get_convert_map", None)  # the importer has no public list
    if table is None:
        raise UsageError("this version of TVM does not list its operators; graph.operators(...) takes a list of yours")
    return {("", name) for name in table()}


def _onnxruntime_operators(provider: str) -> Collection[tuple[str, str]]:
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ImportError as error:
        raise UsageError(f"onnxruntime cannot be imported ({error}); pip install 'rpcsys[graph]'") from None
    return {(kernel.domain, kernel.op_name) for kernel in state.get_all_opkernel_def() if kernel.provider == provider}
