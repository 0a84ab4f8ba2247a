"""Messages as bytes: every type, as the specification has it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import LimitExceeded, ProtocolError, ValueNotSupported
from rpcsys.wire import protobuf
from rpcsys.wire.protobuf import (
    BOOL,
    BYTES,
    DOUBLE,
    FLOAT,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
    VIEW,
    MessageTable,
    OneOf,
    decode,
    encode,
    enum,
)

KIND = enum("NONE", "SOME", "ALL")
INNER = MessageTable((1, "number", INT64), (2, "text", STRING))
TABLE = MessageTable(
    (1, "flag", BOOL),
    (2, "small", INT32),
    (3, "large", UINT64),
    (4, "half", FLOAT),
    (5, "whole", DOUBLE),
    (6, "text", STRING),
    (7, "blob", BYTES),
    (8, "kind", KIND),
    (9, "inner", INNER),
    (10, "numbers", [INT64]),
    (11, "floats", [FLOAT]),
    (12, "texts", [STRING]),
    (13, "inners", [INNER]),
    (14, "by_name", {STRING: INNER}),
    (15, "counts", {UINT32: INT64}),
    (16, "one_number", OneOf(INT64)),
    (17, "one_inner", OneOf(INNER)),
    (2000, "far", UINT32),
)
NOTHING: dict[str, Any] = {
    "flag": False, "small": 0, "large": 0, "half": 0.0, "whole": 0.0, "text": "", "blob": b"", "kind": "NONE",
    "numbers": [], "floats": [], "texts": [], "inners": [], "by_name": {}, "counts": {}, "far": 0,
}  # fmt: skip

int64 = st.integers(-(2**63), 2**63 - 1)
uint32 = st.integers(0, 2**32 - 1)
texts = st.text(max_size=5)
inner = st.fixed_dictionaries({"number": int64, "text": texts})
floats = st.floats(width=32, allow_nan=False)
messages = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "small": st.integers(-(2**31), 2**31 - 1),
        "large": st.integers(0, 2**64 - 1),
        "half": floats,
        "whole": st.floats(allow_nan=False),
        "text": texts,
        "blob": st.binary(max_size=5),
        "kind": st.sampled_from(["NONE", "SOME", "ALL", 7, -1]),
        "numbers": st.lists(int64, max_size=3),
        "floats": st.lists(floats, max_size=3),
        "texts": st.lists(texts, max_size=3),
        "inners": st.lists(inner, max_size=3),
        "by_name": st.dictionaries(texts, inner, max_size=3),
        "counts": st.dictionaries(uint32, int64, max_size=3),
        "far": uint32,
    },
    optional={"inner": inner},
)
one_ofs = st.one_of(
    st.just({}), st.builds(lambda n: {"one_number": n}, int64), st.builds(lambda m: {"one_inner": m}, inner)
)


@given(messages, one_ofs)
def test_a_message_is_read_back(message: dict[str, Any], one_of: dict[str, Any]) -> None:
    message |= one_of
    assert decode(TABLE, encode(TABLE, message)) == message


@given(messages, messages)
def test_two_messages_end_to_end_are_one(first: dict[str, Any], second: dict[str, Any]) -> None:
    """As the specification has it: the later value of a field counts, lists grow, messages are merged."""
    both = decode(TABLE, encode(TABLE, first) + encode(TABLE, second))
    assert both["numbers"] == first["numbers"] + second["numbers"]
    assert both["by_name"] == {**first["by_name"], **second["by_name"]}
    assert both["text"] == (second["text"] or first["text"])


@given(messages)
def test_unknown_fields_are_skipped(message: dict[str, Any]) -> None:
    assert decode(MessageTable((6, "text", STRING)), encode(TABLE, message)) == {"text": message["text"]}
    assert decode(MessageTable(), encode(TABLE, message)) == {}


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = decode(TABLE, data)
    except ProtocolError:
        return
    assert decode(TABLE, encode(TABLE, message)) == decode(TABLE, encode(TABLE, decode(TABLE, data)))


@given(messages)
def test_a_cut_message_is_a_shorter_one_or_refused(message: dict[str, Any]) -> None:
    data = encode(TABLE, message)
    for size in range(len(data)):
        try:
            decode(TABLE, data[:size])
        except ProtocolError:
            continue


def test_no_bytes_are_all_defaults() -> None:
    assert decode(TABLE, b"") == NOTHING
    assert encode(TABLE, NOTHING) == b""


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"flag": True}, b"\x08\x01"),
        ({"small": -1}, b"\x10" + b"\xff" * 9 + b"\x01"),
        ({"large": 300}, b"\x18\xac\x02"),
        ({"half": 1.0}, b"\x25\0\0\x80\x3f"),
        ({"half": -0.0}, b"\x25\0\0\0\x80"),
        ({"text": "é"}, b"\x32\x02\xc3\xa9"),
        ({"kind": "ALL"}, b"\x40\x02"),
        ({"inner": {}}, b"\x4a\0"),
        ({"numbers": [1, 300]}, b"\x52\x03\x01\xac\x02"),
        ({"counts": {1: 2}}, b"\x7a\x04\x08\x01\x10\x02"),
        ({"one_number": 0}, b"\x80\x01\0"),
        ({"far": 1}, b"\x80\x7d\x01"),
    ],
)
def test_bytes_are_those_of_the_specification(value: dict[str, Any], data: bytes) -> None:
    assert encode(TABLE, value) == data
    decoded = decode(TABLE, data)
    assert all(
        decoded[name] == {"number": 0, "text": ""} if name == "inner" else decoded[name] == value[name]
        for name in value
    )


def test_numbers_may_come_one_by_one() -> None:
    assert decode(TABLE, b"\x50\x01\x52\x01\x02\x50\xac\x02")["numbers"] == [1, 2, 300]
    assert decode(TABLE, b"\x5d\0\0\x80\x3f")["floats"] == [1.0]


def test_a_number_is_cut_to_its_bits() -> None:
    assert decode(TABLE, b"\x10" + protobuf.varint(2**32 + 5))["small"] == 5
    assert decode(TABLE, b"\x08\x80\x02")["flag"] is True


def test_the_last_member_of_a_oneof_counts() -> None:
    first, second = encode(TABLE, {"one_number": 1}), encode(TABLE, {"one_inner": {"number": 2}})
    assert decode(TABLE, first + second) == {**NOTHING, "one_inner": {"number": 2, "text": ""}}
    assert decode(TABLE, second + first) == {**NOTHING, "one_number": 1}


def test_an_entry_without_key_or_value_has_their_defaults() -> None:
    assert decode(TABLE, b"\x72\0\x7a\0")["by_name"] == {"": {"number": 0, "text": ""}}
    assert decode(TABLE, b"\x7a\0")["counts"] == {0: 0}


def test_a_field_of_another_wire_type_is_skipped() -> None:
    assert decode(TABLE, b"\x0d\0\0\0\0\x48\x01\x30\x01") == NOTHING


def test_a_view_is_not_copied() -> None:
    data = bytearray(b"\x0a\x03abc")
    view = decode(MessageTable((1, "data", VIEW)), data)["data"]
    data[2] = ord("x")
    assert bytes(view) == b"xbc"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x08", "ends in the middle of a number"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "more than ten bytes"),
        (b"\x00\x01", "number 0"),
        (b"\x80\x80\x80\x80\x80\x01\x01", "number 4294967296"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x0e", "wire type 6"),
        (b"\x32\x05abc", "field 6 has 5 bytes, and 3 came"),
        (b"\x32" + b"\xff" * 9 + b"\x01", "field 6 has 18446744073709551615 bytes, and 0 came"),
        (b"\x25\0\0", "field 4 has 4 bytes, and 2 came"),
        (b"\x32\x01\xff", "text is not UTF-8"),
        (b"\x5a\x03\0\0\0", "floats ends in the middle"),
        (b"\x52\x01\x80", "ends in the middle of a number"),
    ],
)
def test_what_is_no_message(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decode(TABLE, data)


def test_depth_is_bounded() -> None:
    table = MessageTable((1, "number", INT64))
    data = b""
    for _ in range(40):
        table = MessageTable((1, "inner", table))
        data = protobuf.prefix(1, len(data)) + data
    with pytest.raises(LimitExceeded, match="32 messages inside each other"):
        decode(table, data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x6a\0" * (protobuf.MAX_VALUES + 1), id="messages"),
        pytest.param(protobuf.prefix(10, protobuf.MAX_VALUES + 1) + b"\0" * (protobuf.MAX_VALUES + 1), id="numbers"),
        pytest.param(protobuf.prefix(11, 4 << 20) + b"\0" * (4 << 20), id="floats"),
        pytest.param(b"\xf8\x7f\0" * (protobuf.MAX_VALUES + 1), id="unknown"),
    ],
)
def test_values_are_counted_before_they_are_made(data: bytes) -> None:
    with pytest.raises(LimitExceeded, match="more than 65536 values"):
        decode(TABLE, data)


@pytest.mark.parametrize(
    "value",
    [
        {"small": 2**31},
        {"large": -1},
        {"small": "1"},
        {"small": 1.5},
        {"text": 3},
        {"kind": "MANY"},
        {"half": 1e300},
        {"blob": "x"},
    ],
)
def test_a_value_of_another_type_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValueNotSupported, match=f"{next(iter(value))} must be"):
        encode(TABLE, value)


def test_a_name_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(KeyError):
        encode(TABLE, {"other": 1})
