"""Protobuf messages as bytes, from tables of (number, name, type). See https://protobuf.dev/programming-guides/encoding.

A message is a dict by the names of its table. Decoding gives every field a value: the default of its type, but for
messages and members of a oneof, which are there if they came. Unknown fields are skipped; groups are refused.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from rpcsys.errors import LimitExceeded, ProtocolError, ValueNotSupported

#: Messages inside each other, at most.
MAX_DEPTH = 32
#: Values in one message, at most, with all inside it: each takes far more memory than its byte here.
MAX_VALUES = 1 << 16

_VARINT, _FIXED64, DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
#: The bytes of a varint behind which it goes on.
_NOT_LAST = bytes(range(0x80, 0x100))


class Scalar(NamedTuple):
    """A type without fields.

    ``wire_type``: how it is on the wire. ``encode`` and ``decode``: between its value and the payload there, which is
    an integer for a varint, else bytes.
    """

    name: str
    wire_type: int
    default: Any
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class OneOf(NamedTuple):
    """The type of a member of the table's oneof; a table has at most one here."""

    type: Any


#: The type of a field: `Scalar` or `MessageTable`; ``[type]`` for repeated; ``{Scalar: type}`` for a map; `OneOf`.
FieldType = Any


def _integer(name: str, bits: int, signed: bool) -> Scalar:
    low, high = (-1 << bits - 1, 1 << bits - 1) if signed else (0, 1 << bits)

    def encode(value: Any) -> int:
        if type(value) is not int or not low <= value < high:
            raise ValueError
        return value & (1 << 64) - 1

    def decode(payload: int) -> int:
        value = payload & (1 << bits) - 1
        return value - (1 << bits) if signed and value >= high else value

    return Scalar(name, _VARINT, 0, encode, decode)


def _floating(name: str, wire_type: int, code: str) -> Scalar:
    form = struct.Struct(code)
    return Scalar(name, wire_type, 0.0, form.pack, lambda payload: form.unpack(payload)[0])


def _text(payload: Any) -> str:
    return str(payload, "utf-8")


BOOL = Scalar("bool", _VARINT, False, lambda value: int(bool(value)), bool)
INT32, INT64 = _integer("int32", 32, True), _integer("int64", 64, True)
UINT32, UINT64 = _integer("uint32", 32, False), _integer("uint64", 64, False)
FLOAT, DOUBLE = _floating("float", _FIXED32, "<f"), _floating("double", _FIXED64, "<d")
STRING = Scalar("string", DELIMITED, "", str.encode, _text)
BYTES = Scalar("bytes", DELIMITED, b"", bytes, bytes)
#: Bytes that are not copied when they are decoded: a view of the message.
VIEW = Scalar("view", DELIMITED, b"", bytes, lambda payload: payload)


def enum(*names: str) -> Scalar:
    """An enum whose n-th name has the number n. An unknown number is decoded as that number."""
    numbers = {name: number for number, name in enumerate(names)}

    def encode(value: Any) -> int:
        number = numbers[value] if type(value) is str else value
        return INT32.encode(number)  # type: ignore[no-any-return]

    def decode(payload: int) -> Union[str, int]:
        number: int = INT32.decode(payload)
        return names[number] if 0 <= number < len(names) else number

    return Scalar("enum", _VARINT, names[0], encode, decode)


class MessageTable:
    """The fields of a kind of message, each (number, name, type)."""

    def __init__(self, *fields: Tuple[int, str, FieldType]) -> None:
        made = [_Field.of(*field) for field in fields]
        self.by_number = {field.number: field for field in made}
        self.by_name = {field.name: field for field in made}
        self.one_of = [field.name for field in made if field.one_of]
        self.lists = [field.name for field in made if field.repeated]
        self.maps = [field.name for field in made if field.mapped]
        self.defaults = {
            field.name: field.type.default
            for field in made
            if isinstance(field.type, Scalar) and not (field.repeated or field.one_of)
        }

    def empty(self) -> Dict[str, Any]:
        """The message of no bytes."""
        return {**self.defaults, **{name: [] for name in self.lists}, **{name: {} for name in self.maps}}


class _Field(NamedTuple):
    """``type``: of one value; of an entry, which is a message, where it is ``mapped``."""

    number: int
    name: str
    type: Union[Scalar, MessageTable]
    repeated: bool = False
    mapped: bool = False
    one_of: bool = False

    @staticmethod
    def of(number: int, name: str, type: FieldType) -> _Field:
        if isinstance(type, list):
            return _Field(number, name, type[0], repeated=True)
        if isinstance(type, dict):
            ((key, value),) = type.items()
            return _Field(number, name, MessageTable((1, "key", key), (2, "value", value)), mapped=True)
        if isinstance(type, OneOf):
            return _Field(number, name, type.type, one_of=True)
        return _Field(number, name, type)

    @property
    def wire_type(self) -> int:
        return self.type.wire_type if isinstance(self.type, Scalar) else DELIMITED


# ---------------------------------------------------------------- encoding


def varint(value: int) -> bytes:
    """A number from 0 to 2**64 - 1, seven bits a byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


@functools.lru_cache(1024)
def prefix(number: int, size: int) -> bytes:
    """What stands before ``size`` bytes of the field ``number``."""
    return varint(number << 3 | DELIMITED) + varint(size)


def encode(table: MessageTable, value: Dict[str, Any]) -> bytes:
    """The message. Fields that are missing, or have their type's default, are left out.

    Raises KeyError for a name that the table lacks, and `ValueNotSupported` for a value that is none of the type.
    """
    pieces: List[bytes] = []
    for name, content in value.items():
        field = table.by_name[name]
        if field.mapped:
            for key, inner in content.items():
                _encode_one(field, {"key": key, "value": inner}, pieces)
        elif not field.repeated:
            plain = isinstance(field.type, Scalar) and not field.one_of
            if not plain or content != field.type.default or repr(content) == "-0.0":  # type: ignore[union-attr]
                _encode_one(field, content, pieces)
        elif field.wire_type == DELIMITED:
            for inner in content:
                _encode_one(field, inner, pieces)
        elif len(content):
            payload = b"".join([_scalar(field, inner) for inner in content])
            pieces += (prefix(field.number, len(payload)), payload)
    return b"".join(pieces)


def _encode_one(field: _Field, content: Any, pieces: List[bytes]) -> None:
    payload = encode(field.type, content) if isinstance(field.type, MessageTable) else _scalar(field, content)
    if field.wire_type == DELIMITED:
        pieces += (prefix(field.number, len(payload)), payload)
    else:
        pieces += (varint(field.number << 3 | field.wire_type), payload)


def _scalar(field: _Field, value: Any) -> bytes:
    scalar: Any = field.type
    try:
        made = scalar.encode(value)
    except (ValueError, TypeError, OverflowError, KeyError, struct.error):
        raise ValueNotSupported(f"{field.name} must be {scalar.name}, not {value!r}"[:300]) from None
    return varint(made) if scalar.wire_type == _VARINT else made


# ---------------------------------------------------------------- decoding


def read_varint(data: Any, at: int) -> Tuple[int, int]:
    """The number at ``at``, and where it ends. Raises `ProtocolError` for one that is cut, or above 64 bits."""
    try:
        byte = value = data[at]
        at += 1
        if byte < 0x80:
            return value, at
        value &= 0x7F
        for shift in range(7, 70, 7):
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (1 << 64) - 1, at
    except IndexError:
        raise ProtocolError("a message that ends in the middle of a number") from None
    raise ProtocolError("a number of more than ten bytes in a message")


def fields(message: Any) -> Iterator[Tuple[int, int, int, int, Any]]:
    """The fields of a message: where each begins and ends, number, wire type, payload.

    A payload is an integer for a varint, else a slice of ``message``. Raises `ProtocolError` for bytes that are none.
    """
    at, end = 0, len(message)
    while at < end:
        start = at
        key, at = read_varint(message, at)
        number, wire_type = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise ProtocolError(f"a message with a field of the number {number}")
        if wire_type == _VARINT:
            payload, at = read_varint(message, at)
            yield start, at, number, wire_type, payload
            continue
        if wire_type == DELIMITED:
            size, at = read_varint(message, at)
        elif wire_type in _FIXED_BYTES:
            size = _FIXED_BYTES[wire_type]
        else:
            raise ProtocolError(f"a message with a field of wire type {wire_type}")
        if size > end - at:
            raise ProtocolError(f"a message whose field {number} has {size} bytes, and {end - at} came")
        at += size
        yield start, at, number, wire_type, message[at - size : at]


class Budget:
    """How many values may still be taken from one message."""

    def __init__(self, values: int = MAX_VALUES) -> None:
        self.left = values

    def take(self, values: int = 1) -> None:
        """Raises `LimitExceeded` when there are more."""
        self.left -= values
        if self.left < 0:
            raise LimitExceeded(f"a message of more than {MAX_VALUES} values")


def decode(table: MessageTable, message: Any) -> Dict[str, Any]:
    """The fields of a message. Raises `ProtocolError` for bytes that are none, `LimitExceeded` for too many of them."""
    return _decode_into(table.empty(), table, memoryview(message), 0, Budget())


def _decode_into(
    value: Dict[str, Any], table: MessageTable, message: memoryview, depth: int, budget: Budget
) -> Dict[str, Any]:
    """Add a message's fields to ``value``: a message that comes twice counts as one."""
    if depth >= MAX_DEPTH:
        raise LimitExceeded(f"more than {MAX_DEPTH} messages inside each other")
    for _, _, number, wire_type, payload in fields(message):
        budget.take()
        field = table.by_number.get(number)
        if field is None:
            continue
        if isinstance(field.type, Scalar):
            _add_scalar(value, field, field.type, wire_type, payload, budget)
        elif wire_type == DELIMITED:
            _add_message(value, field, field.type, payload, depth + 1, budget)
        else:
            continue
        if field.one_of and field.name in value:
            for other in table.one_of:
                if other != field.name:
                    value.pop(other, None)
    return value


def _add_scalar(
    value: Dict[str, Any], field: _Field, scalar: Scalar, wire_type: int, payload: Any, budget: Budget
) -> None:
    if wire_type == scalar.wire_type:
        item = _decoded(field, scalar, payload)
        if field.repeated:
            value[field.name].append(item)
        else:
            value[field.name] = item
    elif field.repeated and wire_type == DELIMITED:
        if scalar.wire_type == _VARINT:
            budget.take(len(payload.tobytes().translate(None, _NOT_LAST)))
            payloads = unpack(payload)
        else:
            width = _FIXED_BYTES[scalar.wire_type]
            budget.take(len(payload) // width)
            if len(payload) % width:
                raise ProtocolError(f"a message whose {field.name} ends in the middle of a number")
            payloads = [payload[at : at + width] for at in range(0, len(payload), width)]
        value[field.name] += map(scalar.decode, payloads)


def unpack(packed: Any) -> Sequence[int]:
    """The varints that are packed in one payload. Raises `ProtocolError` for one that is cut, or above 64 bits."""
    data = bytes(packed)
    if data.isascii():  # each number has one byte
        return data
    numbers = []
    at, end = 0, len(data)
    while at < end:
        number, at = read_varint(data, at)
        numbers.append(number)
    return numbers


def _decoded(field: _Field, scalar: Scalar, payload: Any) -> Any:
    try:
        return scalar.decode(payload)
    except UnicodeDecodeError:
        raise ProtocolError(f"a message whose {field.name} is not UTF-8") from None


def _add_message(
    value: Dict[str, Any], field: _Field, table: MessageTable, payload: memoryview, depth: int, budget: Budget
) -> None:
    before: Optional[Dict[str, Any]] = None if field.repeated or field.mapped else value.get(field.name)
    made = _decode_into(table.empty() if before is None else before, table, payload, depth, budget)
    if field.repeated:
        value[field.name].append(made)
    elif field.mapped:
        inner = table.by_name["value"].type
        value[field.name][made["key"]] = made.get("value", inner.empty() if isinstance(inner, MessageTable) else None)
    else:
        value[field.name] = made
