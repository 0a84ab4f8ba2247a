"""The layout that TVM had before tvm-ffi."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.module import layout, olderlayout
from rpcsys.module.layout import FormatError, Record
from tests.module.libraries import CUDA, TREE, older, string, vector


def decoded(blob: bytes) -> list[Record]:
    return olderlayout.decode(memoryview(blob))


def test_with_an_import_tree() -> None:
    blob = older(("GraphExecutorFactory", string(b"{...}")), ("_lib", b""), TREE)
    assert decoded(blob) == [Record("GraphExecutorFactory", (1,), memoryview(b"{...}")), Record("_lib", ())]


def test_without_one_the_library_is_the_root() -> None:
    blob = older(("metadata", string(b"weights")), ("cuda", CUDA))
    assert decoded(blob) == [
        Record("_lib", (1, 2)),
        Record("metadata", (), memoryview(b"weights")),
        Record("cuda", (), memoryview(CUDA)),
    ]


def test_modules_follow_one_with_fields_of_its_own() -> None:
    tree = ("_import_tree", vector(0, 2, 2, 2) + vector(1, 2))
    records = decoded(older(("_lib", b""), ("hip", CUDA), ("other", string(b"x")), tree))
    assert [(record.kind, record.imports) for record in records] == [("_lib", (1, 2)), ("hip", ()), ("other", ())]


def test_an_empty_one_is_the_library_alone() -> None:
    assert decoded(older()) == [Record("_lib", ())]


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"", "cut off"),
        (older(("a", b"")), "cut off"),
        (older(("a", string(b"x")), TREE), "import tree"),
        (older(("_lib", b""), ("_lib", b""), ("_import_tree", vector(0, 1, 2) + vector(1, 0))), "circle"),
        (vector(1 << 40), "cut off|claims"),
        (string(vector()[:8].replace(b"\0", b"\xff")), "claims"),
    ],
)
def test_what_is_broken_is_said(blob: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        decoded(blob)


@given(st.binary(max_size=200))
def test_any_bytes_are_modules_or_an_error(data: bytes) -> None:
    for blob in (data, string(data)):
        with contextlib.suppress(FormatError):
            assert all(isinstance(record, layout.Record) for record in decoded(blob))
