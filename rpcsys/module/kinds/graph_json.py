"""Checks the JSON of a graph (kind ``rpcsys.graph``)."""

from __future__ import annotations

from typing import Any, Dict

from rpcsys.errors import ProtocolError, UsageError
from rpcsys.module import packed
from rpcsys.module.layout import FormatError
from rpcsys.wire import device_names, dtypes


def checked(described: Any) -> Dict[str, Any]:
    """Return ``described`` if it is a graph that can run. Raises `FormatError`.

    ::

        {"inputs":  [{"name": "image", "dtype": "uint8", "shape": ["h", "w", 3]}],
         "outputs": [{"name": "prob", "dtype": "float32", "shape": [1, 1000]}],
         "weights": ["mean"],
         "imports": ["_lib", "rpcsys.onnx", "rpcsys.params"],
         "stages":  [{"name": "prepare", "module": 0, "function": "prepare", "inputs": ["image", "mean"],
                      "outputs": ["x"], "makes": [{"dtype": "float32", "shape": [1, 3, "h", "w"]}]},
                     {"name": "network", "module": 1, "function": "main", "inputs": ["x"], "outputs": ["prob"]}]}

    ``module`` is an index into the imports. A stage takes inputs of the graph, outputs of earlier stages, and weights
    of an import of kind ``rpcsys.params``. A stage may have a ``"device"`` to run on. An extent in ``makes`` is a
    number, or the name of an input's extent. A graph may have ``"writes": "NAME"``, a function for native code.
    """
    if not isinstance(described, dict) or not set(described) >= {"inputs", "outputs", "weights", "imports", "stages"}:
        raise FormatError("is broken (it has no inputs, outputs, weights, imports or stages)")
    _names(described["weights"], "weights")
    _names(described["imports"], "imports")
    if described.get("writes", "f") in ("", "main") or not isinstance(described.get("writes", "f"), str):
        raise FormatError("is broken (its function for native code has no name of its own)")
    if not isinstance(described["stages"], list) or not described["stages"]:
        raise FormatError("is broken (it has no stages)")
    inputs = packed.declared(described["inputs"])
    extents = {extent for value in inputs for extent in value.get("shape") or () if isinstance(extent, str)}
    made = {value["name"] for value in inputs} | set(described["weights"])
    if len(made) != len(inputs) + len(described["weights"]):
        raise FormatError("is broken (two of its inputs and weights have one name)")
    for stage in described["stages"]:
        _check_stage(stage, len(described["imports"]), extents)
        for name in stage["inputs"]:
            if name not in made:
                raise FormatError(f"is broken (nothing before stage {stage['name']!r} makes its input {name!r})")
        if made & set(stage["outputs"]) or len(set(stage["outputs"])) != len(stage["outputs"]):
            raise FormatError(f"is broken (an output of stage {stage['name']!r} is made twice)")
        made |= set(stage["outputs"])
    for value in packed.declared(described["outputs"]):
        if value["name"] not in made:
            raise FormatError(f"is broken (no stage makes the output {value['name']!r})")
    return described


def _check_stage(stage: Any, imports: int, extents: Any) -> None:
    if not isinstance(stage, dict) or not all(isinstance(stage.get(key), str) for key in ("name", "function")):
        raise FormatError("is broken (a stage has no name)")
    for key in ("inputs", "outputs"):
        _names(stage.get(key), f"{key} of stage {stage['name']!r}")
    module = stage.get("module")
    if type(module) is not int or not 0 <= module < imports:
        raise FormatError(f"is broken (stage {stage['name']!r} belongs to no module)")
    if "device" in stage:
        try:
            device_names.parse(stage["device"])
        except UsageError as error:
            raise FormatError(f"is broken (stage {stage['name']!r}: {error})") from None
    if "makes" in stage:
        _check_makes(stage, extents)


def _check_makes(stage: Dict[str, Any], extents: Any) -> None:
    makes = stage["makes"]
    if not isinstance(makes, list) or len(makes) != len(stage["outputs"]):
        raise FormatError(f"is broken (stage {stage['name']!r} makes other arrays than its outputs)")
    for value in makes:
        if not isinstance(value, dict) or not isinstance(value.get("shape"), list):
            raise FormatError(f"is broken (an array that stage {stage['name']!r} makes has no shape)")
        try:
            dtypes.item_bytes(value.get("dtype"))
        except ProtocolError as error:
            raise FormatError(f"is broken (stage {stage['name']!r}: {error})") from None
        for extent in value["shape"]:
            if not (extent in extents if isinstance(extent, str) else type(extent) is int and extent >= 0):
                raise FormatError(f"is broken (no input has the extent {extent!r} that stage {stage['name']!r} makes)")


def _names(values: Any, what: str) -> None:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FormatError(f"is broken (the {what} are no names)")
