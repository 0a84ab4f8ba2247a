"""What a stage can be built for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rpcsys.errors import UsageError


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

    target: str | Mapping[str, Any] = field(default="llvm")
    toolchain: str = ""


@dataclass(frozen=True)
class Remote:
    """A function on a server that has the stage already, under the name ``function``.

    It is found at ``address`` (``host:port``), or by ``key`` at ``tracker``; ``wait_s`` are the seconds that a call
    waits for a server to be free.
    """

    function: str
    key: str = ""
    tracker: str = ""
    address: str = ""
    wait_s: float = 60.0


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
    """

    key: str
    tracker: Any = ""
    target: OnnxRuntime | Reference | Tvm | str = "onnxruntime"
    wait_s: float = 60.0
    calls: int = 4
    encode: str = ""


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
        return Tvm(_tvm_target(rest))
    raise UsageError(
        f"no target is called {given!r}; there are {', '.join(_NAMED)}, tvm:TARGET, or an object such as "
        "graph.OnnxRuntime(cpus=[0])"
    )


def _tvm_target(text: str) -> str | dict[str, Any]:
    if not text.startswith("{"):
        return text
    try:
        parsed: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no target of TVM: {error}") from None
    return parsed
