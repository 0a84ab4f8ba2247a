"""The layouts of a tree of modules as bytes."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.module import layout
from rpcsys.module.layout import FormatError, Record
from tests.module.libraries import CUDA, OLDER_KINDS, TREE, older, string, strings, vector, weight

#: TVM 0.27's bytes for a Relax program with kernels: the executable (here 3 bytes of it) imports the library.
RELAX = (
    struct.pack("<Q", 24 + 8 + 8 + 8 + 8 + 18 + 8 + 3 + 8 + 4)
    + struct.pack("<4Q", 3, 0, 1, 1)
    + struct.pack("<2Q", 1, 1)
    + (struct.pack("<Q", 18) + b"relax.VMExecutable" + struct.pack("<Q", 3) + b"abc")
    + (struct.pack("<Q", 4) + b"_lib")
)


def encoded(nodes, datas):
    return b"".join(layout.encode(nodes, lambda index, offset: [datas[index]]))


def test_what_tvm_writes():
    assert layout.decode(memoryview(RELAX)) == [
        Record("relax.VMExecutable", (1,), memoryview(b"abc")),
        Record("_lib", ()),
    ]
    assert encoded([("relax.VMExecutable", (1,)), ("_lib", ())], {0: b"abc"}) == RELAX


def test_data_are_views_of_the_blob():
    blob = bytearray(encoded([("a", ())], [b"first"]))
    data = layout.decode(memoryview(blob))[0].data
    blob[-5:] = b"other"
    assert bytes(data) == b"other"


def test_large_pieces_are_not_copied_and_small_ones_joined():
    weights = bytes(1 << 20)
    pieces = layout.encode([("a", (1, 2)), ("b", ()), ("c", ())], lambda i, _: [weights if i == 1 else b"small"])
    assert len(pieces) == 3
    assert pieces[1].obj is weights


def test_a_saver_receives_the_offset_of_its_bytes():
    told = {}

    def save(index, offset):
        told[index] = offset
        return [bytes([index]) * 100, memoryview(bytes(100_000)), b"end"]

    blob = b"".join(layout.encode([("a", (1,)), ("a", ())], save))
    for index, record in enumerate(layout.decode(memoryview(blob))):
        assert blob[told[index] : told[index] + len(record.data)] == record.data
    assert told[1] > told[0]


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=9), st.binary(max_size=70_000), st.lists(st.integers(0, 99))),
        min_size=1,
        max_size=12,
    )
)
def test_round_trip(shape):
    count = len(shape)
    nodes = [
        (kind, tuple(i + 1 + step % (count - i - 1) for step in steps if i + 1 < count))
        for i, (kind, _, steps) in enumerate(shape)
    ]
    records = layout.decode(memoryview(encoded(nodes, [data for _, data, _ in shape])))
    assert [(r.kind, r.imports) for r in records] == nodes
    assert [None if kind == "_lib" else data for kind, data, _ in shape] == [
        None if r.data is None else bytes(r.data) for r in records
    ]


def test_every_cut_is_an_error():
    for size in range(len(RELAX)):
        with pytest.raises(FormatError, match="cut off"):
            layout.decode(memoryview(RELAX[:size]))


@given(st.binary(max_size=300))
def test_anything_is_decoded_or_refused(data):
    with contextlib.suppress(FormatError):
        layout.decode(memoryview(struct.pack("<Q", len(data)) + data))


@given(st.integers(0, len(RELAX) - 1), st.integers(0, 255))
def test_a_damaged_byte(place, value):
    damaged = bytearray(RELAX)
    damaged[place] = value
    with contextlib.suppress(FormatError):
        layout.decode(memoryview(damaged))


def tree_of(indptr, children, kinds=("a", "b")):
    words = [len(indptr), *indptr, len(children), *children]
    body = struct.pack(f"<{len(words)}Q", *words)
    body += b"".join(struct.pack("<Q", len(k)) + k.encode() + struct.pack("<Q", 0) for k in kinds)
    return struct.pack("<Q", len(body)) + body


@pytest.mark.parametrize(
    ("indptr", "children", "message"),
    [
        ([], [], "broken import tree"),
        ([0], [], "broken import tree"),
        ([1, 1, 1], [1], "broken import tree"),
        ([0, 1, 2], [1], "broken import tree"),
        ([0, 2, 1], [1], "broken import tree"),
        ([0, 5, 1], [1], "broken import tree"),
        ([0, 1, 1], [2], "broken import tree"),
        ([0, 1, 1], [0], "in a circle"),
        ([0, 1, 2], [1, 0], "in a circle"),
    ],
)
def test_invalid_import_trees_are_refused(indptr, children, message):
    with pytest.raises(FormatError, match=message):
        layout.decode(memoryview(tree_of(indptr, children)))


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (struct.pack("<2Q", 8, 1 << 63), "claims"),
        (struct.pack("<2Q", 8, 1 << 20), "reach beyond"),
        (struct.pack("<2Q", 1 << 63, 0), "reach beyond"),
        (tree_of([0, 0], [], [""]), "no name"),
        (tree_of([0, 0], [], ["k" * 2000]), "no name"),
        (tree_of([0, 0], [], ["k"]).replace(b"k", b"\xff"), "no text"),
    ],
)
def test_lengths_beyond_the_end_are_refused(blob, message):
    with pytest.raises(FormatError, match=message):
        layout.decode(memoryview(blob))


# ------------------------------------------------------------------ the layout before tvm-ffi


def decoded_older(blob: bytes) -> list[Record]:
    return layout.decode_older(memoryview(blob))


def test_older_with_an_import_tree() -> None:
    blob = older(("acme.graph", string(b"{...}")), ("_lib", b""), TREE)
    assert decoded_older(blob) == [Record("acme.graph", (1,), memoryview(b"{...}")), Record("_lib", ())]


def test_in_an_older_one_without_a_tree_the_library_is_the_root() -> None:
    blob = older(("acme.weights", string(b"weights")), ("cuda", CUDA))
    assert decoded_older(blob) == [
        Record("_lib", (1, 2)),
        Record("acme.weights", (), memoryview(b"weights")),
        Record("cuda", (), memoryview(CUDA)),
    ]


def test_older_modules_follow_one_with_fields_of_its_own() -> None:
    tree = ("_import_tree", vector(0, 2, 2, 2) + vector(1, 2))
    records = decoded_older(older(("_lib", b""), ("hip", CUDA), ("other", string(b"x")), tree))
    assert [(record.kind, record.imports) for record in records] == [("_lib", (1, 2)), ("hip", ()), ("other", ())]


def test_an_empty_older_one_is_the_library_alone() -> None:
    assert decoded_older(older()) == [Record("_lib", ())]


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
def test_a_broken_older_layout_is_an_error(blob: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        decoded_older(blob)


@pytest.mark.parametrize("kind", OLDER_KINDS)
def test_the_end_of_each_older_kind_is_found(kind: str) -> None:
    data = OLDER_KINDS[kind]
    blob = older((kind, data), ("_lib", b""), ("last", string(b"x")))
    assert decoded_older(blob)[1:] == [
        Record(kind, (), memoryview(data)),
        Record("_lib", ()),
        Record("last", (), memoryview(b"x")),
    ]
    for size in range(8, len(blob) - 8):
        with pytest.raises(FormatError):
            decoded_older(string(blob[8:size]))


def test_the_weights_that_tvm_saves_have_the_form_that_is_skipped() -> None:
    """TVM still saves them so, below a number of its own, names and a count."""
    runtime = pytest.importorskip("tvm").runtime
    saved = bytes(runtime.save_param_dict({"w": runtime.tensor(np.ones((2, 3), "f4"))}))
    head = 16 + len(strings(b"w")) + 8
    assert saved[head:] == weight(2, 3, item=struct.pack("<f", 1))


def test_an_older_kind_of_unknown_form_is_named() -> None:
    blob = older(("acme", string(b"x")), ("metal", CUDA), ("_lib", b""))
    with pytest.raises(FormatError, match=r"is broken .*, or its module of kind 'metal' has a form .* not known here"):
        decoded_older(blob)


@given(st.sampled_from(sorted(OLDER_KINDS)), st.data())
def test_any_bytes_of_an_older_kind_are_read_or_refused(kind: str, data: st.DataObject) -> None:
    damaged = bytearray(OLDER_KINDS[kind])
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place : data.draw(st.integers(place, len(damaged)))] = data.draw(st.binary(max_size=16))
    with contextlib.suppress(FormatError):
        for record in decoded_older(older((kind, bytes(damaged)), ("last", string(b"x")))):
            assert record.data is None or len(record.data) <= len(damaged) + 64


@given(st.binary(max_size=200))
def test_any_bytes_are_older_modules_or_an_error(data: bytes) -> None:
    for blob in (data, string(data)):
        with contextlib.suppress(FormatError):
            assert all(isinstance(record, layout.Record) for record in decoded_older(blob))
