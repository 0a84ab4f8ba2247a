"""Every message of the protocol against the stubs of NVIDIA's client: ours read by theirs, and theirs by ours."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from rpcsys.errors import ProtocolError
from rpcsys.wire.inference_tables import CONTENTS, HEALTH, INFERENCE, METHODS
from rpcsys.wire.protobuf import MessageTable, Scalar, decode, encode

SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
MESSAGES = [
    pytest.param(
        METHODS[INFERENCE + method.name][part],
        (method.input_type, method.output_type)[part],
        id=f"{method.name}-{part}",
    )
    for method in SERVICE.methods
    for part in (0, 1)
]
_VALUES = {
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
}


def _value(kind: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of a type, as a message has them when it is decoded."""
    if isinstance(kind, MessageTable):
        return _message(kind)
    if kind.name == "enum":
        return st.sampled_from(["TYPE_BOOL", "TYPE_STRING", "TYPE_BF16"] if name == "data_type" else ["SERVING"])
    if kind.name == "view":
        return _message(CONTENTS).map(_encode_in_order) if name == "contents" else _VALUES["bytes"]
    return _VALUES[kind.name]


@functools.cache
def _message(table: MessageTable) -> st.SearchStrategy[Any]:
    always, sometimes = {}, {}
    for name, field in table.by_name.items():
        if field.mapped:
            parts = field.type.by_name
            always[name] = st.dictionaries(_value(parts["key"].type), _value(parts["value"].type), max_size=2)
        elif field.repeated:
            always[name] = st.lists(_value(field.type), max_size=2)
        elif not field.one_of:
            (always if isinstance(field.type, Scalar) else sometimes)[name] = _value(field.type, name)
    members = [
        st.just({}),
        *(st.fixed_dictionaries({name: _value(table.by_name[name].type, name)}) for name in table.one_of),
    ]
    return st.builds(
        lambda one, other: one | other, st.fixed_dictionaries(always, optional=sometimes), st.one_of(members)
    )


def _encode_in_order(contents: dict[str, Any]) -> bytes:
    """As the stubs write them: by number."""
    return encode(CONTENTS, {name: contents[name] for name in CONTENTS.by_name})


def test_all_methods_have_tables() -> None:
    theirs = {INFERENCE + method.name for method in SERVICE.methods}
    assert {path for path in METHODS if not path.startswith(HEALTH)} == theirs


def _compare(table: MessageTable, theirs: Any) -> None:
    """Every field has the number, type and form that the stubs have. Those we lack are of models of other servers."""
    for field in table.by_number.values():
        their = theirs.fields_by_number[field.number]
        assert their.name == field.name
        assert their.is_repeated == (field.repeated or field.mapped), field.name
        entry = their.message_type if field.mapped else None
        assert bool(entry and entry.GetOptions().map_entry) == field.mapped
        if field.name != "contents":  # which stay a view
            assert (their.containing_oneof is not None) == field.one_of, field.name
        if isinstance(field.type, MessageTable):
            _compare(field.type, their.message_type)
        elif field.type.name not in ("view", "enum"):
            assert getattr(their, f"TYPE_{field.type.name.upper()}") == their.type
        else:
            assert their.type in (their.TYPE_BYTES, their.TYPE_MESSAGE, their.TYPE_ENUM)


@pytest.mark.parametrize(("table", "theirs"), MESSAGES)
def test_numbers_names_and_types_are_those_of_the_stubs(table: MessageTable, theirs: Any) -> None:
    _compare(table, theirs)
    if theirs.name != "ModelConfigResponse":
        assert set(table.by_number) == set(theirs.fields_by_number)


@pytest.mark.parametrize(("table", "theirs"), MESSAGES)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_they_read_what_we_write_and_we_what_they_write(table: MessageTable, theirs: Any, data: st.DataObject) -> None:
    message = data.draw(_message(table))
    read = theirs._concrete_class.FromString(encode(table, message))
    assert not _unknown(read), "they know each field"
    assert decode(table, read.SerializeToString()) == message


def _unknown(message: Any) -> int:
    from google.protobuf.unknown_fields import UnknownFieldSet

    return len(UnknownFieldSet(message))


@pytest.mark.parametrize(("table", "theirs"), MESSAGES)
@settings(max_examples=20, deadline=None)
@given(data=st.binary(max_size=30))
def test_bytes_that_we_take_are_a_message_for_them(table: MessageTable, theirs: Any, data: bytes) -> None:
    try:
        ours = decode(table, data)
    except ProtocolError:
        return
    if "contents" not in repr(ours):
        theirs._concrete_class.FromString(data)


def test_the_health_service() -> None:
    for method in ("Check", "Watch"):
        request, response = METHODS[HEALTH + method]
        assert encode(request, {"service": "m"}) == b"\x0a\x01m"
        for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
            assert decode(response, b"\x08%c" % number) == {"status": name}
            assert encode(response, {"status": name}) == (b"\x08%c" % number if number else b"")
