"""onnxruntime: opens models, runs them, and rewrites them with its optimizer.

Stages of an exact split are cut from a rewritten model. At the level ``basic`` onnxruntime folds constants and merges
nodes in ways that are valid on any processor; it then runs the model that it also writes. So stages that are cut from
this one, and run as they are, compute the same bits as the whole. A second pass would change some: of a float16 model
it folds the weights' conversion to float32, and a Gemm whose weights are constant computes in another order. Higher
levels fuse nodes across cuts into onnxruntime's operators.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rpcsys.errors import ModelError, one_line
from rpcsys.graph._ir import models
from rpcsys.module.kinds.onnx_model import AnchoredTensor, change_tensors, read, resident

if TYPE_CHECKING:
    import onnxruntime

_WEIGHTS_FILE = "session.optimized_model_external_initializers_file_name"
_IR_VERSION = 10  # any onnxruntime accepts it; it refuses a newer version, even if the model uses nothing new
_EMBEDDED_BYTES = 1 << 24  # more weights go into a file beside the model, both ways: protobuf would copy them


def rewritten(model: ir.Model) -> ir.Model:
    """Let onnxruntime optimise the model at its level ``basic``; the result as ONNX.

    Raises `ModelError` if onnxruntime cannot load it.
    """
    folder = _Folder()
    target = Path(folder.path, "optimised.onnx")
    open_session(model, target)
    result = read(target)
    large = models.weight_bytes(result) > models.EMBEDDED_BYTES

    def kept(tensor: Any) -> Any:
        external = isinstance(tensor, ir.ExternalTensor)
        return AnchoredTensor(tensor.path, tensor, folder) if external and large else resident(tensor)

    change_tensors(result, kept)
    result.ir_version = model.ir_version
    return result


class _Folder:
    """A temporary folder; it is deleted when nothing refers to this object any more."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="rpcsys-")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def open_session(
    model: ir.Model, target: Path | None = None, *, profile: Path | None = None, optimise: bool = True
) -> onnxruntime.InferenceSession:
    """Open the model in an onnxruntime session, optimised at the level ``basic`` or not at all.

    ``target`` is a file to write the resulting model to, with large weights beside it. ``profile`` is a file name's
    prefix: the session then uses one thread, and its ``end_profiling`` writes the times of each node.

    Raises `ModelError` if onnxruntime cannot load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # without this it warns that an optimised model may not run elsewhere
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
        options.intra_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_BASIC if optimise else levels.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder:
        source = Path(folder, "model.onnx")
        models.save(_stamped(model), source, embedded_bytes=_EMBEDDED_BYTES)
        if target is not None:
            options.optimized_model_filepath = str(target)
            if models.data_path(source).exists():
                options.add_session_config_entry(_WEIGHTS_FILE, models.data_path(target).name)
        try:
            return onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - onnxruntime has a class of its own for each status
            raise ModelError(f"onnxruntime cannot load the model: {one_line(error, 400)}") from None


def run(session: onnxruntime.InferenceSession, outputs: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
    """Run the model and return these outputs; ``feeds`` are arrays by input name. Raises `ModelError` if that fails."""
    from rpcsys.module.kinds.onnx_session import SessionRunner

    try:
        runner = SessionRunner(session)
        return runner.run(list(outputs), {value.name: value.check(feeds[value.name]) for value in runner.inputs})
    except Exception as error:  # noqa: BLE001 - onnxruntime has a class of its own for each status
        raise ModelError(f"the model does not run with these inputs: {one_line(error, 300)}") from None


def _stamped(model: ir.Model) -> ir.Model:
    """A copy with an IR version that onnxruntime accepts, without the fields of newer versions."""
    stamped = model.clone()
    if model.ir_version > _IR_VERSION:
        stamped.ir_version = _IR_VERSION
        stamped.device_configurations = ()
        for graph in (stamped.graph, *stamped.functions.values()):
            for node in graph.all_nodes():
                node.device_configurations = ()
    return stamped
