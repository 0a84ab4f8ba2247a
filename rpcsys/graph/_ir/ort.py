"""onnxruntime: models opened in it, run, and rewritten by its optimizer.

Stages of an exact split are cut from a rewritten model. At the level ``basic`` onnxruntime folds constants and merges
nodes in ways that hold for any processor, and a second pass changes nothing. So stages cut afterwards, and run at that
level, compute the same bits as the whole. Higher levels fuse further, across cuts, into operators of onnxruntime's own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rpcsys.errors import ModelError, one_line
from rpcsys.graph._ir import models

if TYPE_CHECKING:
    import onnxruntime

_WEIGHTS_FILE = "session.optimized_model_external_initializers_file_name"
_IR_VERSION = 10  # that any onnxruntime takes; it refuses a newer one, even where the model has nothing new
_EMBEDDED_BYTES = 1 << 24  # more weights lie beside the model on its way there and back: protobuf would copy them


def rewritten(model: ir.Model) -> ir.Model:
    """The model as onnxruntime runs it at its level ``basic``, written back as ONNX, without names of nodes.

    Raises `ModelError` if onnxruntime cannot load it.
    """
    with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder:
        target = Path(folder, "optimised.onnx")
        open_session(model, target)
        result = ir.load(target)
        if models.weight_bytes(result) <= models.EMBEDDED_BYTES:
            ir.external_data.load_to_model(result)
        else:  # mapped now, they stay readable when the folder is gone
            for tensor in models.weights(result):
                tensor.numpy()
    result.ir_version = model.ir_version
    return result


def open_session(
    model: ir.Model, target: Path | None = None, *, profile: Path | None = None, optimise: bool = True
) -> onnxruntime.InferenceSession:
    """The model in an onnxruntime session, at the level ``basic`` or not optimised at all.

    ``target`` is a file to write it to as it then is, its large weights beside it. With ``profile``, the beginning of
    a file's name, it computes in one thread, and its ``end_profiling`` writes what each node took.

    Raises `ModelError` if onnxruntime cannot load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it warns that an optimised model may not run elsewhere
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
    """The outputs of these names, from arrays by the inputs' names. Raises `ModelError` if it does not run so."""
    from rpcsys.module.kinds.onnx_session import Runner

    try:
        runner = Runner(session)
        return runner.run(list(outputs), {value.name: value.check(feeds[value.name]) for value in runner.inputs})
    except Exception as error:  # noqa: BLE001 - onnxruntime has a class of its own for each status
        raise ModelError(f"the model does not run with these inputs: {one_line(error, 300)}") from None


def _stamped(model: ir.Model) -> ir.Model:
    """A copy of an IR version that onnxruntime takes, without what only newer ones have."""
    stamped = model.clone()
    if model.ir_version > _IR_VERSION:
        stamped.ir_version = _IR_VERSION
        stamped.device_configurations = ()
        for graph in (stamped.graph, *stamped.functions.values()):
            for node in graph.all_nodes():
                node.device_configurations = ()
    return stamped
