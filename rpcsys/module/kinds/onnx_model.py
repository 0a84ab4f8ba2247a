"""Separates an ONNX model from its weights, for a library: on the host, with the packages onnx and onnx-ir.

Weights inside the bodies of If and Loop, and large constants, first become weights of the whole model, so that they are
separated, too. Weights that lie in files of their own stay there until the library is written, which names no file.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from rpcsys.errors import UsageError, one_line
from rpcsys.module import external
from rpcsys.module.kinds.onnx_proto import NUMBERS
from rpcsys.module.kinds.onnx_session import Model
from rpcsys.wire.tensor import Tensor, as_tensor

ModelLike = Union[str, "os.PathLike[str]", bytes, onnx.ModelProto, ir.Model]

MAP_TYPE = "rpcsys.map_type"  # in a value's meta: its type as text, if that has maps in it
APART_BYTES = 1024  # smaller weights stay in the model: onnxruntime needs shapes while it optimises
_WEIGHTS_ALONE = 4  # below this IR version weights are inputs, too; from it on, a caller may override such inputs


def weights_of(*models: ModelLike) -> Dict[str, Tensor]:
    """The larger weights of these models by name, to pass to `params` and share between modules.

    Raises `UsageError` if two models have different weights with the same name.
    """
    found: Dict[str, Tensor] = {}
    for model in models:
        for name, tensor in parts(model).weights.items():
            if name in found and not _same(found[name], tensor):
                raise UsageError(f"two models have different weights called {name!r}; rename one of them")
            found[name] = tensor
    return found


def parts(
    model: ModelLike, options: Optional[Dict[str, Any]] = None, shared: Optional[Mapping[str, Tensor]] = None
) -> Model:
    """``model`` in parts; the given one is not changed. Raises `UsageError` if it is not a model."""
    whole = read(model)
    common.LiftSubgraphInitializersToMainGraphPass()(whole)
    common.LiftConstantsToInitializersPass(size_limit=APART_BYTES // 8)(whole)
    apart = _weights(whole)
    for name in apart:
        whole.graph.initializers.pop(name)
    change_tensors(whole, resident)  # of element types that are not separated
    taken = {name for name in apart if shared and name in shared and _same(shared[name], apart[name])}
    try:
        proto = bytes(ir.to_proto(whole).SerializeToString(deterministic=True))
    except ValueError as error:
        text = "the model is over 2 GB even without its weights of plain element types"
        raise UsageError(f"{text}: {one_line(error, 200)}") from None
    return Model(
        proto,
        {name: apart[name] for name in sorted(apart) if name not in taken},
        {name: (apart[name].dtype, apart[name].shape) for name in taken},
        [_declared(value) for value in whole.graph.inputs if value.name not in whole.graph.initializers],
        [_declared(value) for value in whole.graph.outputs],
        options or {},
    )


def read(model: ModelLike) -> ir.Model:
    """Read ``model``, a path, bytes, or a model of onnx or onnx-ir, into a copy that the caller may change.

    Weights that lie in files of their own stay there, and are found from any working folder. Nodes that are not in
    topological order are sorted: onnxruntime runs such models, and converters to float16 write them. Raises
    `UsageError` if it cannot be read as a model, or if a file that it names is missing, too short, or outside its
    folder.
    """
    whole = _copied(model) if isinstance(model, ir.Model) else _sorted(_opened(model))
    folder, name = "", "the model"
    if isinstance(model, (str, os.PathLike)):
        folder, name = os.path.split(os.path.abspath(os.fspath(model)))
    change_tensors(whole, lambda tensor: _anchored(tensor, folder, name))
    if whole.ir_version < _WEIGHTS_ALONE:
        for value in [value for value in whole.graph.inputs if value.name in whole.graph.initializers]:
            whole.graph.inputs.remove(value)
        whole.ir_version = _WEIGHTS_ALONE
    return whole


def _opened(model: Union[str, os.PathLike[str], bytes, onnx.ModelProto]) -> ir.Model:
    path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""
    try:
        proto = onnx.ModelProto()
        if isinstance(model, onnx.ModelProto):
            proto = model
        elif isinstance(model, bytes):
            proto = onnx.load_from_string(model)
        elif not isinstance(model, (str, os.PathLike)):
            raise TypeError(f"it is {type(model).__name__}; give a path, bytes, or a model of onnx or onnx-ir")
        else:
            proto = onnx.load(path, load_external_data=False)
        if not proto.HasField("graph"):
            raise ValueError("it is empty, or holds no graph; export or copy it again")
        whole, maps = _without_maps(_with_dense_weights(proto, os.path.dirname(path)))
        opened = ir.from_proto(whole)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - protobuf, onnx and onnx-ir have classes of their own
        reason = one_line(_innermost(error), 300)
        if isinstance(error, OSError) and error.strerror:
            reason = f"{error.strerror}; check the path"
        raise UsageError(
            f"{repr(path) if path else 'what was given'} cannot be read as an ONNX model: {reason}"
        ) from None
    if path:
        ir.external_data.set_base_dir(opened.graph, os.path.dirname(path))
    if maps:
        for value in (value for node in opened.graph for value in node.outputs):
            if value.name in maps:
                value.meta[MAP_TYPE] = maps[value.name]
    return opened


def _copied(model: ir.Model) -> ir.Model:
    _check_made(model)
    try:
        return model.clone()
    except RuntimeError:  # onnx-ir copies nodes in their order
        raise UsageError("the model's nodes are not in the order in which they run: call model.graph.sort()") from None


def _sorted(model: ir.Model) -> ir.Model:
    """The model, with nodes moved as little as topological order needs."""
    _check_made(model)
    try:
        model.graph.sort()
    except ValueError:
        raise UsageError("the model is broken: a node takes what is made of its own results") from None
    return model


def _check_made(model: ir.Model) -> None:
    """Raise `UsageError` if a node takes a value that nothing makes; onnx-ir reads such a model."""
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is not None and value.producer() is None and value.graph is None:
                name = repr(node.name) if node.name else node.op_type
                raise UsageError(f"the model is broken: {name} takes {value.name!r}, and nothing in it makes that")


def _with_dense_weights(proto: onnx.ModelProto, folder: str) -> onnx.ModelProto:
    """The model with its sparse weights written out, as onnxruntime does when it loads one; onnx-ir has none."""
    if not proto.graph.sparse_initializer:
        return proto
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    dense.graph.ClearField("sparse_initializer")
    for weight in proto.graph.sparse_initializer:
        values, places = (onnx.numpy_helper.to_array(each, folder) for each in (weight.values, weight.indices))
        array = np.zeros(tuple(weight.dims), values.dtype)
        where = np.unravel_index(places, array.shape) if places.ndim == 1 else tuple(places.T)
        array[where] = values
        dense.graph.initializer.append(onnx.numpy_helper.from_array(array, weight.values.name))
    return dense


def _innermost(error: BaseException) -> BaseException:
    """The error that caused the others: onnx-ir's outer ones show a hash of the model alone."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _without_maps(proto: onnx.ModelProto) -> Tuple[onnx.ModelProto, Dict[str, str]]:
    """The model without the types that have maps in them, and these types as text, by tensor.

    onnx-ir has no maps. onnxruntime infers such a type where a node makes it (ZipMap); an input must declare its own.
    Raises `UsageError` for an input of such a type.
    """
    maps = {}
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        text = type_text(value.type)
        if "map(" in text:
            maps[value.name] = text
    for value in proto.graph.input:
        if value.name in maps:
            what = f"input {value.name!r} is {maps[value.name]}, and maps can only be outputs here"
            raise UsageError(f"the model takes a map: {what}; export it without DictVectorizer, with an array as input")
    if not maps:
        return proto, maps
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    for value in (*bare.graph.output, *bare.graph.value_info):
        if value.name in maps:
            value.ClearField("type")
    return bare, maps


def type_text(kind: onnx.TypeProto) -> str:
    """A type as text, such as ``seq(map(int64,tensor(float32)))``; "" for none."""
    form = kind.WhichOneof("value")
    if form == "sequence_type":
        return f"seq({type_text(kind.sequence_type.elem_type)})"
    if form == "optional_type":
        return f"optional({type_text(kind.optional_type.elem_type)})"
    if form == "map_type":
        return f"map({_element(kind.map_type.key_type)},{type_text(kind.map_type.value_type)})"
    return f"tensor({_element(kind.tensor_type.elem_type)})" if form == "tensor_type" else ""


def _element(number: int) -> str:
    try:
        dtype = ir.DataType(number)
        return "strings" if dtype == ir.DataType.STRING else str(dtype.numpy().name)
    except (ValueError, TypeError):
        return "unknown"


def change_tensors(model: ir.Model, change: Callable[[Any], Any]) -> None:
    """Replace every weight of the model, also in bodies, by ``change(weight)``. Tensors in attributes are read."""
    graphs = [*model.graphs(), *(graph for each in model.functions.values() for graph in each.subgraphs())]
    for value in [value for graph in graphs for value in graph.initializers.values()]:
        if value.const_value is not None:
            value.const_value = change(value.const_value)
    for node in [node for each in (model.graph, *model.functions.values()) for node in each.all_nodes()]:
        for name, attribute in list(node.attributes.items()):
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                node.attributes[name] = ir.AttrTensor(name, resident(change(attribute.value)))
            elif attribute.type == ir.AttributeType.TENSORS:
                node.attributes[name] = ir.AttrTensors(name, [resident(change(tensor)) for tensor in attribute.value])


def resident(tensor: Any) -> Any:
    """The tensor in memory. Raises `UsageError` if its file cannot be read."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.Tensor(_array(tensor).copy(), dtype=tensor.dtype, name=tensor.name, doc_string=tensor.doc_string)


def _anchored(tensor: Any, folder: str, name: str) -> Any:
    """The tensor with the whole path of its file, which lies in ``folder`` if that is given."""
    if not isinstance(tensor, ir.ExternalTensor) or isinstance(tensor, AnchoredTensor):
        return tensor
    place = external.Place(os.fspath(tensor.location), tensor.offset or 0, tensor.length or tensor.nbytes)
    path = external.found_at(folder or os.path.abspath(tensor.base_dir), place, name)
    return AnchoredTensor(path, tensor)


class AnchoredTensor(ir.ExternalTensor):  # type: ignore[misc]  # onnx-ir's classes have no types
    """A tensor in a file, by the file's whole path. ``owner``: what must live as long as it does."""

    def __init__(self, path: str, tensor: ir.ExternalTensor, owner: Any = None) -> None:
        super().__init__(
            path, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name,
            doc_string=tensor.doc_string,
        )  # fmt: skip
        self.owner = owner


def _array(tensor: Any) -> Any:
    """The tensor's array, mapped if it is in a file."""
    try:
        return np.asarray(tensor.numpy())
    except (OSError, ValueError) as error:  # what a file holds does not fit the model
        raise UsageError(f"the weight {tensor.name!r} cannot be read: {one_line(error, 300)}") from None


def _weights(model: ir.Model) -> Dict[str, Tensor]:
    """The weights that can be separated, as views of their memory or file."""
    found = {}
    for name, value in model.graph.initializers.items():
        held = value.const_value
        if held is None or held.nbytes < APART_BYTES or value.is_graph_input() or value.is_graph_output():
            continue
        if held.dtype != ir.DataType.STRING and str(held.dtype.numpy().name) in NUMBERS:
            found[name] = as_tensor(_array(held))
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _same(one: Tensor, other: Tensor) -> bool:
    alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and np.array_equal(np.frombuffer(one.data, "u1"), np.frombuffer(other.data, "u1"))


def _declared(value: ir.Value) -> Dict[str, Any]:
    """Name, dtype and shape, in onnxruntime's terms."""
    shape: List[Any] = []
    if value.shape is not None:
        shape = [extent if isinstance(extent, int) else extent.value for extent in value.shape]
    dtype = "unknown" if value.dtype is None else str(value.dtype.numpy().name)
    if value.dtype == ir.DataType.STRING:
        dtype = "strings"
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        dtype, shape = str(value.type), []
    if MAP_TYPE in value.meta:
        dtype = value.meta[MAP_TYPE]
    return {"name": value.name, "dtype": dtype, "shape": shape}
