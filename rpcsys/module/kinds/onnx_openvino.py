"""Runs ONNX models on OpenVINO's devices by the package openvino, where onnxruntime has no provider for it.

Statements about OpenVINO here were found by running 2026.4 on its device CPU.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import openvino

from rpcsys.errors import RemoteFunctionError
from rpcsys.module.kinds.cpus import bound_to
from rpcsys.module.kinds.onnx_proto import NUMBERS, external_weight, head_of_weight
from rpcsys.module.kinds.openvino_profile import OperatorCounters
from rpcsys.module.kinds.runtime_model import OnePerCall
from rpcsys.module.kinds.values import Value
from rpcsys.module.layout import Buffer
from rpcsys.module.module import process, running_call
from rpcsys.module.registry import File
from rpcsys.wire.device_names import parse

if TYPE_CHECKING:
    from rpcsys.module.kinds.onnx_session import OnnxWeight

#: OpenVINO's element types -> numpy's names of them. Others have no numpy type.
_TYPES = {
    "f16": "float16", "f32": "float32", "f64": "float64", "boolean": "bool",
    **{f"{sign}{bits}": f"{'u' if sign == 'u' else ''}int{bits}" for sign in "iu" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_core_lock = threading.Lock()
_core: List[Any] = []


class OpenVinoRunner:
    """A model that is ready to run, with the interface of `onnx_session.SessionRunner`."""

    runtime = "openvino"
    on_device = False  # it takes and gives arrays of the host

    def __init__(self, compiled: Any, cpus: Sequence[int]) -> None:
        """Raises ValueError for tensors of a type that numpy lacks."""
        self._compiled = compiled
        self._cpus = cpus
        self._requests: OnePerCall[Tuple[Any, Dict[int, Any]]] = OnePerCall(
            lambda: (compiled.create_infer_request(), {})
        )
        self.inputs = [_declared(port, f"input{place}") for place, port in enumerate(compiled.inputs)]
        self.outputs = [_declared(port, f"output{place}") for place, port in enumerate(compiled.outputs)]
        self.optional: List[Value] = []  # it makes constants of weights that a caller may override elsewhere
        self.counters: Optional[OperatorCounters] = None  # where it was compiled with them
        self._taken = {value.name: place for place, value in enumerate(self.inputs)}
        self._given = {value.name: place for place, value in enumerate(self.outputs)}
        static = [port.get_partial_shape().is_static for port in compiled.outputs]
        self._static = [place for place, value in enumerate(self.outputs) if static[place] and 0 not in value.shape]

    def run(self, outputs: List[str], feeds: Dict[str, Any]) -> List[Any]:
        """The outputs of those names, for checked inputs. Many threads may call it."""
        if self._cpus:
            with bound_to(self._cpus):
                return self._run(outputs, feeds)
        return self._run(outputs, feeds)

    def _run(self, outputs: List[str], feeds: Dict[str, Any]) -> List[Any]:
        with self._requests.one() as (request, made):
            given = {self._taken[name]: np.asarray(feed, order="C") for name, feed in feeds.items()}
            self._make_outputs(request, made)
            began = time.perf_counter()
            if running_call.stops is None:
                request.infer(given, share_inputs=True, share_outputs=True)
            else:
                self._stoppable(request, given)
            if self.counters is not None:
                self.counters.note(request.profiling_info, time.perf_counter() - began)
            places = [self._given[name] for name in outputs]
            return [
                made[place] if place in made and place not in places[:number] else _copied(request, place)
                for number, place in enumerate(places)
            ]

    def _make_outputs(self, request: Any, made: Dict[int, Any]) -> None:
        """Make the outputs of known shapes: OpenVINO writes to them without a copy, and ``made`` keeps them alive."""
        for place in self._static:
            array = np.empty(self.outputs[place].shape, self.outputs[place].dtype)
            request.set_output_tensor(place, openvino.Tensor(array, shared_memory=True))
            made[place] = array

    def _stoppable(self, request: Any, given: Dict[int, Any]) -> None:
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            request.cancel()

        with running_call.stopped_by(stop):
            request.start_async(given, share_inputs=True)
            try:
                request.wait()
            except RuntimeError:
                if stopped.is_set():
                    raise RemoteFunctionError("the call was stopped") from None
                raise


def _copied(request: Any, place: int) -> Any:
    return np.array(request.get_output_tensor(place).data)


def _declared(port: Any, unnamed: str) -> Value:
    """An input or output; ``unnamed`` is its name if the model gives it none."""
    name = port.get_any_name() if port.get_names() else unnamed
    kind = port.get_element_type().get_type_name()
    if kind not in _TYPES:
        raise ValueError(f"OpenVINO has {name!r} as {kind}, which numpy lacks")
    partial = port.get_partial_shape()
    rank = [] if partial.rank.is_dynamic else partial
    return Value(name, _TYPES[kind], [None if extent.is_dynamic else extent.get_length() for extent in rank])


def of_file(path: str, options: Mapping[str, Any]) -> OpenVinoRunner:
    """Open the model of an ``.onnx`` file. Raises what OpenVINO raises."""
    return compiled(core().read_model(path), options)


def of_bytes(model: bytes, weights: Mapping[str, OnnxWeight], options: Mapping[str, Any]) -> OpenVinoRunner:
    """Open a model with separated weights. Raises what OpenVINO raises.

    OpenVINO maps weights that a model references in a file of its folder, and follows no link out of that. So the model
    is written beside the file, or holds copies of its weights where that is impossible.
    """
    files = [weight.file for weight in weights.values() if weight.file is not None and weight.file.path]
    if files:
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(
            dir=os.path.dirname(files[0].path), prefix="rpcsys-", suffix=".onnx"
        ) as beside:
            beside.writelines([model, *_pieces(weights, files[0])])
            beside.flush()
            return compiled(core().read_model(beside.name), options)
    return compiled(core().read_model(b"".join([model, *_pieces(weights)])), options)


def _pieces(weights: Mapping[str, OnnxWeight], beside: Optional[File] = None) -> Iterator[Buffer]:
    """The weights to append to the model: the places of those in the file ``beside`` it, the bytes of others."""
    for name, (tensor, home) in weights.items():
        size = len(tensor.data)
        if beside is not None and home is beside:
            location = os.path.basename(beside.path)
            yield external_weight(name, tensor.dtype, tensor.shape, location, beside.place(tensor.data), size)
        else:
            yield head_of_weight(name, NUMBERS[tensor.dtype], tensor.shape, size)
            yield tensor.data


def compiled(model: Any, options: Mapping[str, Any]) -> OpenVinoRunner:
    """Compile a model of OpenVINO for ``options["device"]``. Raises what OpenVINO raises."""
    device, cpus = parse(options["device"]).number, options.get("cpus", ())
    settings: Dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if device == "CPU":
        threads = options.get("threads") or len(cpus) or process.threads
        settings["ENABLE_CPU_PINNING"] = False
        if threads:
            settings["INFERENCE_NUM_THREADS"] = threads
    if device.startswith(("CPU", "GPU")):
        settings["INFERENCE_PRECISION_HINT"] = (
            "f32"  # by default some of them compute in fewer bits than the model says
        )
    if "profile" in options:
        settings["PERF_COUNT"] = True
    with bound_to(cpus):
        runner = OpenVinoRunner(core().compile_model(model, device, settings), cpus)
    if "profile" in options:
        runner.counters = OperatorCounters(averages=device == "CPU")
    return runner


def core() -> Any:
    """OpenVINO in this process, opened at the first use."""
    with _core_lock:
        if not _core:
            _core.append(openvino.Core())
        return _core[0]


def complaint(device: str) -> str:
    """Why OpenVINO here does not run models on ``device``, to follow the model's name; empty if it does."""
    name, there = parse(device).number, core().available_devices
    if name in there or name in {each.partition(".")[0] for each in there}:
        return ""
    return f"is for {device}, and OpenVINO here has {', '.join(f'openvino:{each}' for each in there) or 'no device'}"
