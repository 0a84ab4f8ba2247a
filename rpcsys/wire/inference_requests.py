"""What a server of the Open Inference Protocol reads in a request, in JSON or a message, and how it answers in JSON.

A tensor's data is in one of four forms: a `BinarySpan` of the binary part behind the JSON; a `Region` of shared memory;
a list of JSON values, flat or nested; or bytes, as a client has them.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from rpcsys.wire.dtypes import count
from rpcsys.wire.inference import DATATYPES, WIDTHS, InferenceError, InferTensor, unpack_bytes

#: The code in gRPC for each HTTP status of an `InferenceError`.
GRPC_CODES: Dict[int, int] = {
    400: 3, 404: 5, 405: 12, 408: 4, 413: 8, 415: 3, 429: 8, 499: 1, 500: 13, 501: 12, 503: 14, 504: 4,
}  # fmt: skip
_UNKNOWN = 2
#: Outputs that a request may name.
_MAX_OUTPUTS = 4096
#: Extents of a shape, and elements of a tensor: more than any memory holds.
_MAX_EXTENTS = 64
_MAX_ELEMENTS = 1 << 40


def grpc_code(error: InferenceError) -> int:
    """The status code of an error in gRPC; 2 (UNKNOWN) for a status that has none."""
    return GRPC_CODES.get(error.status, _UNKNOWN)


class BinarySpan(NamedTuple):
    """Data in the binary part. Spans follow each other in the order of tensors, without a gap, from offset 0 on.

    In a message the binary part is all raw contents, one behind the other: the n-th span is the n-th of them.
    """

    offset: int
    size: int


class Region(NamedTuple):
    """Data in the shared memory that is registered as ``name``."""

    name: str
    offset: int
    size: int


class RequestedOutput(NamedTuple):
    """An output that a request wants. ``classification``: so many of the highest values, as text; 0 for the tensor."""

    name: str
    binary: bool
    classification: int = 0
    region: Optional[Region] = None


class InferRequest(NamedTuple):
    """A request. ``outputs``: empty for all of the model's, in the binary part if ``binary_output``.

    ``timeout_us``: 0 for none. ``priority``: 1 comes first, 0 is not said. ``final``: whether the answer says that it
    is the last (``triton_enable_empty_final_response``). ``binary_bytes``: of all `BinarySpan`s of its inputs.
    """

    model: str
    version: str
    id: Optional[str]
    inputs: List[InferTensor]
    outputs: List[RequestedOutput]
    binary_output: bool = False
    timeout_us: int = 0
    priority: int = 0
    final: bool = False
    binary_bytes: int = 0


def request_from_json(value: Any, model: str, version: str, binary_bytes: int) -> InferRequest:
    """The request in a JSON object, with ``binary_bytes`` behind it. ``model`` and ``version`` are from the path.

    Raises `InferenceError` (400) for a request that cannot be meant.
    """
    value = _an_object(value, "a request")
    said = value.get("id")
    if said is not None and type(said) is not str:
        raise InferenceError("'id' must be a text")
    inputs, size = _inputs_from_json(value.get("inputs"))
    if size != binary_bytes:
        raise InferenceError(f"the inputs announce {size} bytes of binary data, and {binary_bytes} came")
    parameters = _an_object(value.get("parameters") or {}, "'parameters'")
    binary = _flag(parameters, "binary_data_output", False)
    outputs = value.get("outputs") or []
    if type(outputs) is not list:
        raise InferenceError("'outputs' must be a list")
    wanted = []
    for output in outputs:
        output = _an_object(output, "an output")
        wanted.append((output.get("name"), _an_object(output.get("parameters") or {}, "the parameters of an output")))
    return requested(model, version, said, inputs, wanted, parameters, binary)


def _inputs_from_json(values: Any) -> Tuple[List[InferTensor], int]:
    """The inputs, and the bytes of their binary part."""
    if type(values) is not list:
        raise InferenceError("'inputs' must be a list of tensors")
    inputs: Dict[str, InferTensor] = {}
    at = 0
    for value in values:
        tensor = _input_from_json(value, at)
        if tensor.name in inputs:
            raise InferenceError(f"input '{tensor.name}' is given twice"[:300])
        inputs[tensor.name] = tensor
        at += tensor.data.size if type(tensor.data) is BinarySpan else 0
    return list(inputs.values()), at


def _input_from_json(value: Any, offset: int) -> InferTensor:
    """The input in a JSON object. ``offset``: where its `BinarySpan` begins."""
    value = _an_object(value, "an input")
    name, datatype = value.get("name"), value.get("datatype")
    if type(name) is not str:
        raise InferenceError("an input has no name")
    what = f"input '{name[:200]}'"
    parameters = _an_object(value.get("parameters") or {}, f"the parameters of {what}")
    size, region = parameters.get("binary_data_size"), region_from_json(parameters, what)
    forms: List[Any] = [form for form in (value.get("data"), region) if form is not None]
    if size is not None:
        forms.append(BinarySpan(offset, natural(size, f"{what}: binary_data_size")))
    if len(forms) != 1:
        raise InferenceError(f"{what} has {'its data twice' if forms else 'no data'}")
    if value.get("data") is not None and type(forms[0]) is not list:
        raise InferenceError(f"the data of {what} is no list")
    if type(forms[0]) is list and datatype == "BF16":
        raise InferenceError(f"{what}: BF16 has no form in JSON; send it as binary data")
    return checked(name, datatype, value.get("shape"), forms[0], what)


def checked(
    name: str, datatype: Any, shape: Any, data: Any, what: str, span_size: str = "binary_data_size"
) -> InferTensor:
    """A tensor, if its datatype and shape are such, and fit the size of its data. Raises `InferenceError`.

    ``what`` and ``span_size``: what the error calls it, and the size of a `BinarySpan`.
    """
    if type(datatype) is not str or datatype not in DATATYPES:
        raise InferenceError(f"{what} has the unknown datatype {datatype!r}"[:300])
    if type(shape) is not list or len(shape) > _MAX_EXTENTS:
        raise InferenceError(f"{what} needs a shape: a list of at most {_MAX_EXTENTS} extents")
    shape = tuple(natural(extent, f"an extent of {what}") for extent in shape)
    elements = count(shape)
    if elements > _MAX_ELEMENTS:
        raise InferenceError(f"{what} would have {elements} elements")
    if type(data) is not list and datatype != "BYTES":
        needed = elements * WIDTHS[datatype]
        given = data.size if isinstance(data, (BinarySpan, Region)) else len(data)
        if given != needed:
            where = {BinarySpan: span_size, Region: "shared_memory_byte_size"}.get(type(data), "its size")
            raise InferenceError(f"{what} takes {needed} bytes, and {where} is {given}")
    return InferTensor(name, datatype, shape, data)


def region_from_json(parameters: Mapping[str, Any], what: str) -> Optional[Region]:
    """The place in shared memory that a tensor's parameters say; None if they say none. Raises `InferenceError`."""
    name = parameters.get("shared_memory_region")
    if name is None:
        return None
    if type(name) is not str:
        raise InferenceError(f"{what}: shared_memory_region must be a name")
    offset = natural(parameters.get("shared_memory_offset", 0), f"{what}: shared_memory_offset")
    size = natural(parameters.get("shared_memory_byte_size"), f"{what}: shared_memory_byte_size")
    return Region(name, offset, size)


def region_to_json(region: Region) -> Dict[str, Any]:
    """The parameters that say where in shared memory a tensor is."""
    name, offset, size = region
    return {"shared_memory_region": name, "shared_memory_offset": offset, "shared_memory_byte_size": size}


def natural(value: Any, what: str) -> int:
    """``value``, if it is a whole number from 0 to 2**40. Raises `InferenceError` about ``what``."""
    if type(value) is not int or not 0 <= value <= _MAX_ELEMENTS:
        raise InferenceError(f"{what} must be a whole number from 0 on, not {value!r}"[:300])
    return value


def _an_object(value: Any, what: str) -> Dict[str, Any]:
    if type(value) is not dict:
        raise InferenceError(f"{what} must be a JSON object")
    return value


def requested(
    model: str,
    version: str,
    id: Optional[str],
    inputs: List[InferTensor],
    outputs: Sequence[Tuple[Any, Mapping[str, Any]]],
    parameters: Mapping[str, Any],
    binary: bool,
) -> InferRequest:
    """A request with these names and parameters of outputs, and parameters of its own. Raises `InferenceError`."""
    if any(parameters.get(key) for key in ("sequence_id", "sequence_start", "sequence_end")):
        raise InferenceError(f"'{model}' keeps nothing between calls: it has no sequences (sequence_id)"[:300])
    if len(outputs) > _MAX_OUTPUTS:
        raise InferenceError(f"{len(outputs)} outputs are wanted, and at most {_MAX_OUTPUTS} can be")
    wanted = [_requested_output(name, more, binary) for name, more in outputs]
    if len({output.name for output in wanted}) < len(wanted):
        raise InferenceError("an output is wanted twice")
    return InferRequest(
        model,
        version,
        id,
        inputs,
        wanted,
        binary,
        _whole(parameters, "timeout"),
        _whole(parameters, "priority"),
        _flag(parameters, "triton_enable_empty_final_response", False),
        sum(tensor.data.size for tensor in inputs if type(tensor.data) is BinarySpan),
    )


def _requested_output(name: Any, parameters: Mapping[str, Any], binary: bool) -> RequestedOutput:
    if type(name) is not str:
        raise InferenceError("an output has no name")
    what = f"output '{name[:200]}'"
    classes = natural(parameters.get("classification", 0), f"{what}: classification")
    region = region_from_json(parameters, what)
    return RequestedOutput(name, _flag(parameters, "binary_data", binary), classes, region)


def _flag(parameters: Mapping[str, Any], key: str, default: bool) -> bool:
    value = parameters.get(key, default)
    if type(value) is not bool:
        raise InferenceError(f"'{key}' must be true or false")
    return value


def _whole(parameters: Mapping[str, Any], key: str) -> int:
    value = parameters.get(key, 0)
    if type(value) is not int or value < 0:
        raise InferenceError(f"'{key}' must be a whole number from 0 on")
    return min(value, _MAX_ELEMENTS)


def request_without_json(model: str, version: str, only: InferTensor, binary_bytes: int) -> InferRequest:
    """The request of a body that has no JSON, for a model with one input.

    ``only``: name, datatype and shape of the input, with -1 for a free extent. Of two free extents, the first is 1 if
    it is that of the batch. Raises `InferenceError` (400) where the body's size says no shape.
    """
    if only.datatype == "BYTES":
        raise InferenceError(
            f"a request without JSON is for an input of numbers, and '{only.name}' of '{model}' is BYTES"
        )
    shape = list(only.shape)
    free = [place for place, extent in enumerate(shape) if extent < 0]
    if len(free) > 1 and free[0] == 0:
        shape[free.pop(0)] = 1
    if len(free) > 1:
        raise InferenceError(f"'{model}' has several free extents: say the shape of '{only.name}' in JSON")
    for place in free:
        shape[place] = 1
        shape[place] = binary_bytes // max(1, WIDTHS[only.datatype] * count(shape))
    tensor = checked(only.name, only.datatype, shape, BinarySpan(0, binary_bytes), f"input '{only.name}'")
    return InferRequest(model, version, None, [tensor], [], True, binary_bytes=binary_bytes)


def match_inputs(request: InferRequest, expected: Sequence[InferTensor]) -> List[InferTensor]:
    """The request's inputs in the order of ``expected``: the model's, with -1 for free extents, and no data.

    Raises `InferenceError` (400) for an input that is missing, unknown, or of another datatype or shape.
    """
    model, given = request.model, {tensor.name: tensor for tensor in request.inputs}
    for name in given.keys() - {tensor.name for tensor in expected}:
        raise InferenceError(f"unexpected inference input '{name[:200]}' for model '{model}'")
    matched = []
    for wanted in expected:
        tensor = given.get(wanted.name)
        if tensor is None:
            had = f"expected {len(expected)} inputs but got {len(given)} inputs for model '{model}'"
            raise InferenceError(f"{had}: '{wanted.name}' is missing")
        if tensor.datatype != wanted.datatype:
            what = f"inference input '{wanted.name}' data-type is '{tensor.datatype}'"
            raise InferenceError(f"{what}, but model '{model}' expects '{wanted.datatype}'")
        if not fits(tensor.shape, wanted.shape):
            what = f"unexpected shape for input '{wanted.name}' for model '{model}'"
            raise InferenceError(f"{what}. Expected {_shown(wanted.shape)}, got {_shown(tensor.shape)}")
        matched.append(tensor)
    return matched


def fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether a shape is that which is expected, where -1 is any extent."""
    return len(shape) == len(expected) and all(want in (-1, extent) for extent, want in zip(shape, expected))


def _shown(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def match_outputs(request: InferRequest, names: Sequence[str]) -> List[Tuple[int, RequestedOutput]]:
    """The outputs that are wanted, each with its place among the model's.

    Raises `InferenceError` (400) for a name that is none of ``names``.
    """
    if not request.outputs:
        return [(place, RequestedOutput(name, request.binary_output)) for place, name in enumerate(names)]
    places = {name: place for place, name in enumerate(names)}
    for output in request.outputs:
        if output.name not in places:
            what = f"unexpected inference output '{output.name[:200]}' for model '{request.model}'"
            raise InferenceError(f"{what}; it has {', '.join(names)}")
    return [(places[output.name], output) for output in request.outputs]


def response_to_json(
    model: str, version: str, outputs: Sequence[InferTensor], id: Optional[str] = None, final: bool = False
) -> Dict[str, Any]:
    """The JSON object of an answer. Data of another form than `BinarySpan` and `Region` is kept: a list, or an array.

    ``final``: it says that it is the last of its request's.
    """
    value: Dict[str, Any] = {"model_name": model, "model_version": version}
    if id is not None:
        value["id"] = id
    if final:
        value["parameters"] = {"triton_final_response": True}
    value["outputs"] = [_tensor_to_json(tensor) for tensor in outputs]
    return value


def _tensor_to_json(tensor: InferTensor) -> Dict[str, Any]:
    name, datatype, shape, data = tensor
    value: Dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(shape)}
    if type(data) is BinarySpan:
        value["parameters"] = {"binary_data_size": data.size}
    elif type(data) is Region:
        value["parameters"] = region_to_json(data)
    else:
        value["data"] = data
    return value


def strings_of(data: Any, elements: int, what: str) -> bytes:
    """BYTES of the protocol as rpcsys/1's strings: their lengths (u64), then all of them.

    Raises `InferenceError` (400) about ``what`` for another number of elements, and for one that is not UTF-8.
    """
    given = unpack_bytes(data, what)
    if len(given) != elements:
        raise InferenceError(f"{what} has {len(given)} elements, and its shape says {elements}")
    try:
        for element in given:
            element.decode()
    except UnicodeDecodeError:
        raise InferenceError(f"{what} has an element that is not UTF-8, which strings of a model have to be") from None
    return struct.pack(f"<{elements}Q", *map(len, given)) + b"".join(given)


def bytes_of(strings: Any, elements: int) -> bytes:
    """rpcsys/1's strings, of which there are ``elements``, as BYTES of the protocol. The reverse of `strings_of`."""
    at = 8 * elements
    pieces: List[Any] = []
    for size in struct.unpack_from(f"<{elements}Q", strings):
        pieces += (struct.pack("<I", size), strings[at : at + size])
        at += size
    return b"".join(pieces)
