"""What a stage can be built for, and which operators that has."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir

from rpcsys.errors import UsageError
from rpcsys.graph._ir.models import bodies

Coder: TypeAlias = Callable[[Any], Any]  # what makes another array of an array: a function, or a module
Encoding: TypeAlias = str | Mapping[str, str | tuple[Coder, Coder]]  # one way for all, or each by name


@dataclass(frozen=True)
class OnnxRuntime:
    """onnxruntime, wherever the module is loaded.

    Attributes
    ----------
    threads : how many it computes with; by default one for each of its CPUs
    cpus : the CPUs it stays on; by default all that the process may use
    provider : onnxruntime's name of what computes
    """

    threads: int | None = None
    cpus: Sequence[int] = ()
    provider: str = "CPUExecutionProvider"


@dataclass(frozen=True)
class Reference:
    """The reference evaluator of onnx: every operator of the standard, and slow."""


@dataclass(frozen=True)
class Tvm:
    """Native code, compiled by TVM; a device with libtvm_ffi and libtvm_runtime runs it without any package.

    Attributes
    ----------
    target : TVM's target: its kind (``"llvm"``), or a mapping such as ``{"kind": "llvm", "mtriple":
        "aarch64-linux-gnu"}``
    toolchain : what links for it: a target's name (``"aarch64-linux-gnu"``) or the path of a CMake toolchain file;
        "" is this machine's own compiler
    """

    target: str | Mapping[str, Any] = "llvm"
    toolchain: str = ""


@dataclass(frozen=True)
class Remote:
    """A function on a server that has the stage already: it is called, and its weights stay there.

    Attributes
    ----------
    function : its name; of a deployed module, by default ``main``
    serve : what the deployed module is called (``rpcsys deploy``); "" for a function of the server's sessions
    key, tracker, address : where it is: at ``address`` (``host:port``), or at a server that ``tracker`` knows, which
        a function of sessions is leased from by ``key``
    encode : how the stage's inputs and outputs cross, by their names: ``{"features": "int8+zlib"}``; or one way for all
        that it applies to. There are float16, int8, zlib, zstd, and one that rounds with one that compresses. For
        `graph.offload`, also a pair of functions or modules: what encodes here, what decodes there
    fallback : what to build the stage for, so that it runs here while the server is gone; None to wait for that
    wait_s : seconds that a call waits for a server to be free, or back
    deadline_s : seconds that a call may take there; 0 for any number
    repeatable : whether a call is made again when the connection was lost while it ran
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


@dataclass(frozen=True)
class Leased:
    """A device that is leased for the stage, and sent it.

    Attributes
    ----------
    key : of the devices that will do
    tracker : who has them: ``host:port``, ``(host, port)``, or what `rpcsys.connect_tracker` gave; "" for the
        environment's
    target : what the stage is built for there
    wait_s : seconds to wait for a device to be free
    calls : how many frames a pipeline has under way on it, so that the way there and the device are both busy
    encode : how arrays cross, where it applies: ``"float16"``, ``"int8+zlib"``, …
    deadline_s : seconds that a frame may take there, 0 for any number; one that takes longer is ended and fails, and
        another device is leased
    """

    key: str
    tracker: Any = ""
    target: OnnxRuntime | Reference | Tvm | str = "onnxruntime"
    wait_s: float = 60.0
    calls: int = 4
    encode: str = ""
    deadline_s: float = 0.0


Target: TypeAlias = OnnxRuntime | Reference | Tvm | Remote | Leased

_NAMED: dict[str, Target] = {"onnxruntime": OnnxRuntime(), "reference": Reference(), "tvm": Tvm()}


def target_of(given: Target | str) -> Target:
    """The target that a name stands for: ``"onnxruntime"``, ``"reference"``, ``"tvm"``, or ``"tvm:"`` and TVM's
    target, a kind or JSON. Raises `UsageError` for any other.
    """
    if not isinstance(given, str):
        return given
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
    known = f"{', '.join(_NAMED)}, tvm:TARGET, or an object such as graph.OnnxRuntime(cpus=[0])"
    raise UsageError(f"no target is called {given!r}; there are {known}")


def supported(target: Target | str) -> Callable[[ir.Node], bool]:
    """All nodes whose operators ``target`` has, for `partition`: usually with ``several=True``.

    TVM tells what its importer converts, onnxruntime which kernels a provider has. A node with bodies is taken if all
    that is in them can be. That an operator is known does not promise every type and attribute of it.
    Raises `UsageError` for a target without a list of operators, and where TVM or onnxruntime is not installed.
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
        raise UsageError("this version of TVM does not tell its operators; graph.operators(...) takes a list of yours")
    return {("", name) for name in table()}


def _onnxruntime_operators(provider: str) -> Collection[tuple[str, str]]:
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ImportError as error:
        raise UsageError(f"onnxruntime cannot be imported ({error}); pip install 'rpcsys[graph]'") from None
    return {(kernel.domain, kernel.op_name) for kernel in state.get_all_opkernel_def() if kernel.provider == provider}
