"""Kind ``rpcsys.group``: modules side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ModelError, RemoteFunctionError
from rpcsys.module import layout, packed
from rpcsys.module.kinds.group import GroupModule, group, load_from_bytes
from rpcsys.module.layout import FormatError
from rpcsys.module.module import Module
from tests.module.trees import Holder, blob_of, bytes_kind, loaded

__all__ = ["bytes_kind"]
pytestmark = pytest.mark.usefixtures("bytes_kind")


def test_a_group_has_the_functions_of_its_members():
    members = [Holder(b"abc"), Holder(b"abcde", name="length")]
    root = loaded(blob_of(Module("rpcsys.group", imports=members)))
    assert (root.kind, root.functions, root["size"]()) == ("rpcsys.group", ["size"], 3)


@pytest.mark.parametrize("data", [b"", b"?", b"".join(map(bytes, packed.pack({"functions": [3]}, [], 0)))])
def test_invalid_groups_are_refused(data):
    blob = b"".join(layout.encode([("rpcsys.group", ())], lambda index, offset: [data]))
    with pytest.raises(ModelError, match=r"model\.so is (cut off or )?broken"):
        loaded(blob)


def test_functions_are_found_in_order():
    root = group([Holder(b"abc"), Holder(b"abcde"), Holder(b"x", name="length")])
    assert (root.functions, root["size"](), root["length"]()) == (["size", "length"], 3, 1)
    assert root.names() == []
    with pytest.raises(RemoteFunctionError, match="no function 'main'; it has size, length"):
        root()


def test_functions_are_listed_before_the_imports_are_attached():
    data = b"".join(map(bytes, packed.pack({"functions": ["main", "size"]}, [], 0)))
    alone = load_from_bytes(memoryview(data), None)
    assert isinstance(alone, GroupModule)
    assert (alone.listed, alone.functions) == (["main", "size"], [])
    alone.attach([Holder(b"abc")])
    assert alone.functions == ["size"]


@given(st.binary(max_size=60))
def test_any_bytes_are_a_group_or_an_error(data):
    for each in (data, b"".join(map(bytes, packed.pack({"functions": data.hex()}, [], 0)))):
        with pytest.raises(FormatError):
            load_from_bytes(memoryview(each), None)
