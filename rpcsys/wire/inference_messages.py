"""Requests and answers of the Open Inference Protocol as protobuf messages, both directions.

Raw contents are neither copied nor parsed: they are views of the received message, and pieces of the one that is sent.
All other messages of the protocol are tables in `rpcsys.wire.inference_tables`, for `protobuf.encode` and `decode`.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from rpcsys.errors import LimitExceeded, ProtocolError
from rpcsys.wire import protobuf
from rpcsys.wire.dtypes import format_of_name
from rpcsys.wire.inference import DATATYPES, InferenceError, InferTensor, pack_bytes
from rpcsys.wire.inference_requests import (
    BinarySpan,
    InferRequest,
    Region,
    checked,
    region_from_json,
    region_to_json,
    requested,
)
from rpcsys.wire.inference_tables import CONTENTS, INFER_REQUEST, INFER_RESPONSE, STREAM_RESPONSE
from rpcsys.wire.protobuf import prefix

#: Bytes of contents that are not raw, at most: they are parsed by the loop.
MAX_CONTENTS = 16 << 20

_MODEL_NAME = INFER_REQUEST.by_name["model_name"].number
_RAW_INPUTS = INFER_REQUEST.by_name["raw_input_contents"].number
_RAW_OUTPUTS = INFER_RESPONSE.by_name["raw_output_contents"].number
_INFER_RESPONSE = STREAM_RESPONSE.by_name["infer_response"].number
#: Which field of the contents has the elements of each datatype. FP16 and BF16 have none: they are always raw.
_CONTENTS_OF = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{name.upper(): f"{name}_contents" for name in ("bool", "int64", "uint64", "fp32", "fp64", "bytes")},
}


class SplitMessage(NamedTuple):
    """A message without its raw contents, and these, as views of it."""

    head: bytes
    raw: List[memoryview]


def split_request(message: Any) -> SplitMessage:
    """A ModelInferRequest without its raw inputs, and these. Equal requests have equal heads.

    Raises `ProtocolError` for bytes that are no message.
    """
    return _split(memoryview(message), _RAW_INPUTS)


def model_of(message: Any) -> str:
    """The name of the model in a ModelInferRequest, also in one that cannot be read whole; "" where it has none."""
    try:
        for _, _, number, _, payload in protobuf.fields(memoryview(message)):
            if number == _MODEL_NAME and type(payload) is memoryview:
                return str(payload, "utf-8", "replace")
    except ProtocolError:
        pass
    return ""


def _split(message: memoryview, raw_number: int) -> SplitMessage:
    pieces: List[memoryview] = []
    raw: List[memoryview] = []
    first = last = 0  # of the piece that is under way
    for start, end, number, _, payload in protobuf.fields(message):
        if number != raw_number:
            last = end
            continue
        if first < start:
            pieces.append(message[first:start])
        first = last = end
        if type(payload) is memoryview:
            raw.append(payload)
            if len(raw) > protobuf.MAX_VALUES:
                raise LimitExceeded(f"a message with more than {protobuf.MAX_VALUES} raw contents")
    if first < last:
        pieces.append(message[first:last])
    return SplitMessage(b"".join(pieces), raw)


def request_from_message(head: bytes, raw_sizes: Sequence[int], max_contents: int = MAX_CONTENTS) -> InferRequest:
    """The request in the head of a message, with raw inputs of these sizes.

    Contents that are not raw become bytes. Raises `ProtocolError`; `InferenceError` (400, 413) for a request that
    cannot be meant, and for more than ``max_contents`` bytes that are not raw.
    """
    if len(head) > max_contents:
        what = f"{len(head)} bytes without raw contents, and at most {max_contents} are parsed"
        raise InferenceError(f"{what}: send tensors as raw_input_contents", 413)
    value = protobuf.decode(INFER_REQUEST, head)
    inputs = _tensors(value["inputs"], raw_sizes, "input")
    outputs = [(output["name"], _plain(output["parameters"])) for output in value["outputs"]]
    parameters = _plain(value["parameters"])
    return requested(
        value["model_name"], value["model_version"], value["id"] or None, inputs, outputs, parameters, True
    )


def _tensors(values: Sequence[Dict[str, Any]], raw_sizes: Sequence[int], kind: str) -> List[InferTensor]:
    """The tensors of a message. An input in shared memory has no raw contents, an output there has empty ones."""
    tensors: Dict[str, InferTensor] = {}
    raw, at = iter(raw_sizes), 0
    for value in values:
        name, datatype, shape = value["name"], value["datatype"], value["shape"]
        what = f"{kind} '{name[:200]}'"
        data: Any = region_from_json(_plain(value["parameters"]), what)
        size = next(raw, None) if raw_sizes and (data is None or kind == "output") else None
        if size is not None and data is None:
            data = BinarySpan(at, size)
            at += size
        if data is None and raw_sizes:
            raise InferenceError(f"{what} has no data: only {len(raw_sizes)} raw contents came")
        if value.get("contents") and data is not None:  # MLServer sends empty ones beside raw outputs
            raise InferenceError(f"{what} has contents beside its other data")
        if name in tensors:
            raise InferenceError(f"{what} is given twice")
        if data is None:
            if datatype not in DATATYPES:
                raise InferenceError(f"{what} has the unknown datatype {datatype!r}"[:300])
            data = _from_contents(datatype, value.get("contents", b""), what)
        tensors[name] = checked(name, datatype, shape, data, what, "its raw size")
    if next(raw, None) is not None:
        raise InferenceError(f"{len(raw_sizes)} raw contents came, more than there are {kind}s for them")
    return list(tensors.values())


def _plain(parameters: Mapping[str, Dict[str, Any]]) -> Dict[str, Any]:
    """The values of parameters, each without the name of its type."""
    return {key: next(iter(choice.values()), None) for key, choice in parameters.items()}


def _from_contents(datatype: str, contents: Any, what: str) -> bytes:
    """The bytes of a tensor whose elements are in a field of its contents. Raises `InferenceError`, `ProtocolError`."""
    name = _CONTENTS_OF.get(datatype)
    if name is None:
        raise InferenceError(f"{what}: {datatype} has no contents; send it as raw contents")
    field = CONTENTS.by_name[name]
    scalar: Any = field.type
    payloads = []
    for _, _, number, wire_type, payload in protobuf.fields(contents):
        if number != field.number or wire_type not in (scalar.wire_type, protobuf.DELIMITED):
            raise InferenceError(f"{what} is {datatype}, whose elements have to be in {name}")
        payloads.append((wire_type, payload))
    if datatype == "BYTES":
        return pack_bytes([payload for _, payload in payloads])
    if datatype in ("FP32", "FP64"):
        return b"".join([payload for _, payload in payloads])
    numbers: List[int] = []
    for wire_type, payload in payloads:
        numbers += map(scalar.decode, (payload,) if wire_type == scalar.wire_type else protobuf.unpack(payload))
    try:
        return struct.pack(f"<{len(numbers)}{format_of_name(DATATYPES[datatype])}", *numbers)
    except struct.error:
        raise InferenceError(f"the data of {what} has a value that is no {datatype}") from None


def request_to_message(
    model: str,
    version: str,
    inputs: Sequence[InferTensor],
    outputs: Sequence[str] = (),
    id: str = "",
    parameters: Optional[Mapping[str, Any]] = None,
) -> List[Any]:
    """A ModelInferRequest as pieces to be joined: the inputs' data are bytes, and go as raw inputs, or `Region`s."""
    value = {
        "model_name": model,
        "model_version": version,
        "id": id,
        "parameters": _choices(parameters or {}),
        "inputs": list(map(_described, inputs)),
        "outputs": [{"name": name} for name in outputs],
    }
    pieces = [protobuf.encode(INFER_REQUEST, value)]
    for tensor in inputs:
        if type(tensor.data) is not Region:
            pieces += (prefix(_RAW_INPUTS, len(tensor.data)), tensor.data)
    return pieces


def _described(tensor: InferTensor) -> Dict[str, Any]:
    """What a message says of a tensor whose data is raw or in shared memory."""
    value: Dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    if type(tensor.data) is Region:
        value["parameters"] = _choices(region_to_json(tensor.data))
    return value


def _choices(parameters: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    """Parameters with the names of their types. Triton wants a priority without a sign."""
    names = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    return {
        key: {"uint64_param" if key == "priority" else names[type(value)]: value} for key, value in parameters.items()
    }


def response_from_message(message: Any) -> List[InferTensor]:
    """The outputs of the answer in a ModelInferResponse; their data are views of ``message``, bytes, or `Region`s.

    Raises `ProtocolError` and `InferenceError` for one that is none.
    """
    head, raw = _split(memoryview(message), _RAW_OUTPUTS)
    outputs = _tensors(protobuf.decode(INFER_RESPONSE, head)["outputs"], [len(view) for view in raw], "output")
    for place, view in enumerate(raw):
        if type(outputs[place].data) is BinarySpan:
            outputs[place] = outputs[place]._replace(data=view)
    return outputs


def response_head(
    model: str, version: str, outputs: Sequence[InferTensor], id: Optional[str] = None, final: bool = False
) -> bytes:
    """A ModelInferResponse without raw outputs. ``final``: it says that it is the last of its request's.

    The raw outputs follow, one for each output and in their order, each behind its `raw_prefix`; an empty one for an
    output in shared memory, since clients find them by their places.
    """
    value = {
        "model_name": model,
        "model_version": version,
        "id": id or "",
        "parameters": _choices({"triton_final_response": True}) if final else {},
        "outputs": list(map(_described, outputs)),
    }
    return protobuf.encode(INFER_RESPONSE, value)


def raw_prefix(size: int) -> bytes:
    """What stands before a raw output of ``size`` bytes."""
    return prefix(_RAW_OUTPUTS, size)


def stream_prefix(size: int) -> bytes:
    """What makes a ModelInferResponse of ``size`` bytes, behind it, a ModelStreamInferResponse."""
    return prefix(_INFER_RESPONSE, size)


def stream_error(message: str, id: Optional[str] = None) -> bytes:
    """A ModelStreamInferResponse with an error. ``id``: that of the request."""
    return protobuf.encode(STREAM_RESPONSE, {"error_message": message, "infer_response": {"id": id or ""}})
