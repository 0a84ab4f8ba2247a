"""One ONNX model in one onnxruntime session: made from a file, or from bytes and weights that lie elsewhere.

Facts about onnxruntime that this file respects (found by running 1.31 with onnx 1.23): it refuses models
stamped with a newer IR version than it knows, though they run when the stamp is lowered; a brand-new
opset needs ``ALLOW_RELEASED_ONNX_OPSET_ONLY=0``; with its default thread count it pins its own workers
and escapes the process's CPU affinity, so the count is set to the CPUs the process may use; spinning
threads disturb everything else on a small machine; bfloat16 and float8 pass only as raw bits in OrtValues.

Weights: onnxruntime maps those that a model says are in a file, wherever in it they begin, and touches only what it
uses (256 MB in 3 ms and 8 MB of memory). From memory it takes them too, but reads all (578 ms), and
keeps a copy unless the same value is given to it in both of its ways.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Union

import numpy as np
import onnxruntime

from rpcsys.module.kinds.onnx_proto import NUMBERS, external_weight, with_ir_version
from rpcsys.module.kinds.onnx_values import RAW, Value, from_ort, to_ort
from rpcsys.module.module import Stops, process, running_call
from rpcsys.module.registry import File
from rpcsys.wire.tensor import Tensor

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")

_FOLDER = "session.model_external_initializers_file_folder_path"
_LEVELS = {
    "off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Weight(NamedTuple):
    """A weight of a model, and the mapped file that its bytes are in, where it is one."""

    tensor: Tensor
    file: Optional[File] = None


class Runner:
    """A model that is ready to run. ``optional``: weights that a caller may give in the place of the model's."""

    runtime = "onnxruntime"

    def __init__(self, session: Any, keep: Any = None, cpus: Sequence[int] = ()) -> None:
        self._session = session
        self._keep = keep  # memory that the session reads
        self._cpus = cpus
        self.inputs = [Value(node) for node in session.get_inputs()]
        self.outputs = [Value(node) for node in session.get_outputs()]
        self.optional = [Value(node) for node in session.get_overridable_initializers()]
        for value in self.inputs + self.outputs:
            if value.dtype is None and value.type.startswith("tensor("):
                raise ValueError(f"onnxruntime neither takes nor gives a {value.type} in Python ({value.name!r})")
        self._raw = any(value.dtype in RAW for value in self.inputs + self.outputs)
        self._raw_out = any(value.dtype in RAW for value in self.outputs)
        if self._raw_out and any(value.dtype in (None, "strings") for value in self.inputs + self.outputs):
            raise ValueError(
                "it gives bfloat16, float8 or int4 beside strings, sequences or maps, and onnxruntime takes no such calls from Python"
            )

    def run(self, outputs: List[str], feeds: Dict[str, Any]) -> List[Any]:
        """The outputs of those names, for checked inputs. May be called by many threads."""
        if self._cpus:
            with _on(self._cpus):
                return self._run(outputs, feeds)
        return self._run(outputs, feeds)

    def _run(self, outputs: List[str], feeds: Dict[str, Any]) -> List[Any]:
        stops = running_call.stops
        how = None if stops is None else _stoppable(stops)
        if not self._raw:
            results: List[Any] = self._session.run(outputs, feeds, how)
            return results
        values = {name: to_ort(feed) if _is_array(feed) else feed for name, feed in feeds.items()}
        if self._raw_out:
            results = [from_ort(value) for value in self._session.run_with_ort_values(outputs, values, how)]
        else:
            results = self._session.run(outputs, values, how)
        return results


def _stoppable(stops: Stops) -> Any:
    """Options for a run that ends with an error soon after one of ``stops`` is called, which is added to them."""
    options = onnxruntime.RunOptions()
    stops.append(lambda: setattr(options, "terminate", True))
    return options


def _is_array(feed: Any) -> bool:
    """Whether an OrtValue can be made of an input: not of strings, sequences and maps."""
    return isinstance(feed, Tensor) or (isinstance(feed, np.ndarray) and feed.dtype.kind not in "OU")


def of_file(path: str, options: Mapping[str, Any]) -> Runner:
    """The model in an ``.onnx`` file. Raises what onnxruntime does."""

    def lowered(version: int) -> Runner:
        # The patched copy stands beside the model, so that external weights are still found.
        copy = path + ".ir"
        try:
            with open(path, "rb") as model, open(copy, "wb") as file:
                file.write(with_ir_version(model.read(), version))
            return _runner(copy, _settings(options), options)
        finally:
            os.unlink(copy)

    return _stamped(lambda: _runner(path, _settings(options), options), lowered)


def of_bytes(model: bytes, weights: Mapping[str, Weight], options: Mapping[str, Any]) -> Runner:
    """The model without its weights, and those: mapped where they are in a file. Raises what onnxruntime does."""
    settings = _settings(options)
    files = [weight.file for weight in weights.values() if weight.file is not None and weight.file.path]
    file = files[0] if files else None
    if file is not None:
        settings.add_session_config_entry(_FOLDER, os.path.dirname(file.path))
    pieces, keep = [model], {}
    for name, (tensor, home) in weights.items():
        offset = file.place(tensor.data) if file is not None and home is file else None
        location = os.path.basename(file.path) if file is not None and offset is not None else "in memory"
        pieces.append(external_weight(name, tensor.dtype, tensor.shape, location, offset or 0, len(tensor.data)))
        if offset is None:
            keep[name] = _value(tensor)
            settings.add_initializer(name, keep[name])
    settings.add_external_initializers(list(keep), list(keep.values()))
    whole = b"".join(pieces)
    return _stamped(
        lambda: _runner(whole, settings, options, keep),
        lambda version: _runner(with_ir_version(whole, version), settings, options, keep),
    )


def _stamped(act: Callable[[], Runner], with_version: Callable[[int], Runner]) -> Runner:
    """``act``, or ``with_version`` where onnxruntime finds the model's IR version too new."""
    try:
        return act()
    except Exception as error:
        newest = re.search(r"max supported IR version: (\d+)", str(error))
        if newest is None:
            raise
    return with_version(int(newest.group(1)))


def _settings(options: Mapping[str, Any]) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # what it would warn of comes back as an exception, or concerns nobody
    threads = options.get("threads") or len(options.get("cpus", ())) or process.threads
    settings.intra_op_num_threads = threads or len(_cpus_here())
    settings.graph_optimization_level = _LEVELS[options.get("level", "all")]
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return settings


def _runner(model: Union[str, bytes], settings: Any, options: Mapping[str, Any], keep: Any = None) -> Runner:
    providers = list(options.get("providers", ["CPUExecutionProvider"]))
    cpus = options.get("cpus", ())
    with _on(cpus):  # the session's threads begin with the affinity of the one that makes it
        session = onnxruntime.InferenceSession(model, settings, providers=providers)
    return Runner(session, keep, cpus)


@contextlib.contextmanager
def _on(cpus: Sequence[int]) -> Iterator[None]:
    """This thread, on these CPUs for a while; on those it has if there are none."""
    before = _cpus_here()
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, before)


def _cpus_here() -> Set[int]:
    """The CPUs that this thread may use; none where the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def complaint(options: Mapping[str, Any]) -> str:
    """What of the options this machine cannot do; empty for nothing."""
    lacking: List[Any] = sorted(set(options.get("cpus", ())) - _cpus_here())
    if lacking:
        return f"is for CPUs that this process may not use: {', '.join(map(str, lacking))}"
    lacking = [name for name in options.get("providers", ()) if name not in onnxruntime.get_available_providers()]
    if lacking:
        has = ", ".join(onnxruntime.get_available_providers())
        return f"is for {', '.join(lacking)}, and onnxruntime here has {has}"
    return ""


def _value(tensor: Tensor) -> Any:
    if tensor.dtype in RAW:
        return to_ort(tensor)
    return to_ort(np.frombuffer(tensor.data, tensor.dtype).reshape(tensor.shape))


def options_of(given: Any) -> Dict[str, Any]:
    """Checked options: ``threads`` (a number), ``cpus`` (their numbers), ``level`` (off, basic, extended, all),
    ``providers`` (names), ``runtime`` (onnxruntime, reference).

    Raises ValueError, saying what is wrong.
    """
    if not isinstance(given, dict) or set(given) - {"threads", "cpus", "level", "providers", "runtime"}:
        raise ValueError("options are threads, cpus, level, providers and runtime")
    if given.get("level", "all") not in _LEVELS:
        raise ValueError("a level is one of " + ", ".join(_LEVELS))
    threads, cpus, providers = given.get("threads", 1), given.get("cpus", []), given.get("providers", [])
    if type(threads) is not int or not 0 < threads < 1 << 16:
        raise ValueError("threads is a number from 1")
    if not isinstance(cpus, list) or not all(type(cpu) is int and 0 <= cpu < 1 << 16 for cpu in cpus):
        raise ValueError("cpus is a list of numbers from 0")
    if not isinstance(providers, list) or not all(isinstance(name, str) for name in providers):
        raise ValueError("providers is a list of names")
    if given.get("runtime", "onnxruntime") not in ("onnxruntime", "reference"):
        raise ValueError("a runtime is onnxruntime or reference")
    return given


def can_be_apart(dtype: str) -> bool:
    """Whether weights of that type can be given apart from a model."""
    return dtype in NUMBERS
