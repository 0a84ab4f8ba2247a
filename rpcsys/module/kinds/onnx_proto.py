"""Writes the few protobuf fields that a device needs to complete an ONNX model, without the protobuf package.

Two serialised messages, one after the other, are the two merged: repeated fields are joined, for other fields the last
one counts, and inner messages are merged likewise (protobuf's encoding guide, "Last One Wins"). So an ONNX model is
changed by appending bytes. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

from typing import Dict, Sequence, Union

#: The wire's name -> TensorProto.DataType, for types whose elements are whole bytes.
NUMBERS: Dict[str, int] = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15, "bfloat16": 16,
    "float8_e4m3fn": 17, "float8_e4m3fnuz": 18, "float8_e5m2": 19, "float8_e5m2fnuz": 20,
}  # fmt: skip
_VARINT, _BYTES = 0, 2
_EXTERNAL = 1


def with_ir_version(model: bytes, version: int) -> bytes:
    """A serialised ModelProto with its IR version lowered to ``version``."""
    return model + _field(1, version)


def external_weight(name: str, dtype: str, shape: Sequence[int], location: str, offset: int, size: int) -> bytes:
    """Bytes to append to a serialised ModelProto: a weight whose bytes are in the file ``location``."""
    places = {"location": location, "offset": str(offset), "length": str(size)}
    tensor = b"".join(_field(1, extent) for extent in shape)
    tensor += _field(2, NUMBERS[dtype]) + _field(8, name.encode())
    tensor += b"".join(_field(13, _field(1, key.encode()) + _field(2, text.encode())) for key, text in places.items())
    tensor += _field(14, _EXTERNAL)
    return _field(7, _field(5, tensor))  # ModelProto.graph, GraphProto.initializer


def head_of_weight(name: str, number: int, shape: Sequence[int], size: int) -> bytes:
    """Bytes to append to a serialised ModelProto before the ``size`` bytes of a weight; ``number`` is its data type."""
    tensor = b"".join(_field(1, extent) for extent in shape) + _field(2, number) + _field(8, name.encode())
    head = _begun(9, size)  # TensorProto.raw_data
    for message, field in ((tensor, 5), (b"", 7)):  # GraphProto.initializer, ModelProto.graph
        head = _begun(field, len(message) + len(head) + size) + message + head
    return head


def _begun(number: int, size: int) -> bytes:
    """The beginning of a field, before its ``size`` bytes."""
    return _varint(number << 3 | _BYTES) + _varint(size)


def _field(number: int, value: Union[int, bytes]) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    return _begun(number, len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
