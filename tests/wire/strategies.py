"""Hypothesis strategies for values of every form on the wire, and the comparison of sent and received values."""

from __future__ import annotations

import array
import math
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from rpcsys.wire import dtypes
from rpcsys.wire.tensor import Tensor, as_tensor
from rpcsys.wire.values import InOut, Out, Ref

#: Every name of the table that numpy or ml_dtypes can express here.
NAMES = [name for name in dtypes.ITEM_BYTES if dtypes.numpy_dtype(name) is not None]
#: Names that are built from a pattern, not listed.
WIDE = [
    "S0", "S1", "S10", "U0", "U1", "U5", "V1", "V8",
    "datetime64", "datetime64[ns]", "datetime64[25s]", "datetime64[D]", "timedelta64[us]", "timedelta64",
]  # fmt: skip

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)

# Hypothesis draws from all categories, so texts contain surrogates, alone and in invalid pairs.
texts = st.one_of(
    st.text(st.characters(), max_size=20),
    st.sampled_from(["", "@", "\ud800", "\ud83d\ude00"]),
    st.sampled_from(["a", "ä", "\udcff"]).map(lambda letter: letter * 4096),
    st.sampled_from(["a", "ä", "\udcff"]).map(lambda letter: letter * 4097),
)
numbers = st.one_of(
    st.integers(), st.sampled_from([63, 64, 13000]).map(lambda bits: -(2**bits)), st.floats(), st.complex_numbers()
)
blobs = st.one_of(st.binary(max_size=100), st.binary(max_size=100).map(bytearray), st.builds(lambda: b"x" * 70000))


@st.composite
def arrays(draw: Any) -> np.ndarray[Any, Any]:
    """An array of any dtype that has a name, in native order and C order."""
    name = draw(st.sampled_from(NAMES + WIDE))
    shape = draw(shapes)
    dtype = dtypes.numpy_dtype(name)
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.ndarray(shape, dtype)
    # Repeated rather than drawn to the last byte: what matters is that bytes differ.
    data = (draw(st.binary(min_size=1, max_size=64)) * size)[:size]
    if name == "bool":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(bytearray(data), dtype).reshape(shape)


@st.composite
def laid_out(draw: Any) -> np.ndarray[Any, Any]:
    """An array in any layout: also big-endian, transposed, with steps, read-only, in Fortran's order."""
    given = draw(arrays())
    how = draw(st.sampled_from(["as is", "big", "transposed", "steps", "read-only", "fortran"]))
    if how == "big" and given.dtype.kind not in "SV" and given.dtype.itemsize > 1:
        return given.astype(given.dtype.newbyteorder(">"))
    if how == "steps":
        return given[..., ::-2] if given.ndim else given
    if how == "read-only":
        given.flags.writeable = False
    return {"transposed": given.T, "fortran": np.asfortranarray(given)}.get(how, given)


strings = st.tuples(shapes, st.lists(texts, min_size=1, max_size=3)).map(
    lambda drawn: np.array((drawn[1] * math.prod(drawn[0]))[: math.prod(drawn[0])], dtype=object).reshape(drawn[0])
)

buffers = st.one_of(
    st.lists(st.integers(0, 100), max_size=6).map(lambda items: array.array("l", items)),
    st.lists(st.floats(width=32), max_size=6).map(lambda items: array.array("f", items)),
    st.binary(max_size=30).map(memoryview),
    st.builds(lambda: memoryview(array.array("d", range(6))).cast("B").cast("d", [2, 3])),
    st.builds(lambda: memoryview(b"0123456789")[::3]),
)

tensors = st.one_of(laid_out(), strings, buffers)
outs = st.builds(Out, shapes, st.sampled_from(NAMES + WIDE))
inouts = st.builds(InOut, st.one_of(tensors, st.builds(Ref, st.integers(0, 2**62))))
data = st.one_of(st.none(), st.booleans(), numbers, texts, blobs, tensors)
leaves = st.one_of(data, outs, inouts)
refs = st.builds(
    Ref, st.integers(0, 2**62), st.dictionaries(st.sampled_from(["is", "shape", "functions"]), leaves, max_size=3)
)
keys = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts, st.binary(max_size=9)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=3,
)


def trees(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists, tuples and dicts of values ``of``."""
    return st.recursive(
        of,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(texts, inner, max_size=4),
            st.dictionaries(keys, inner, max_size=4),
            st.dictionaries(st.just("@"), inner, max_size=1),
        ),
        max_leaves=12,
    )


#: All values with a form, and those of them that a function may get and return unchanged.
values = trees(st.one_of(leaves, refs))
results = trees(data)


def same(sent: Any, came: Any) -> bool:
    """Whether ``came`` is ``sent`` as a receiver must have it: equal, of the same type, NaN like NaN."""
    tensor = None if isinstance(sent, (bytes, bytearray)) else as_tensor(sent)
    if tensor is not None:
        return _same_tensor(tensor, came)
    if isinstance(sent, bytearray):
        return type(came) is bytes and came == sent
    if type(sent) is not type(came):
        return False
    if isinstance(sent, (list, tuple)):
        return len(sent) == len(came) and all(map(same, sent, came))
    if isinstance(sent, dict):
        return same(list(sent.items()), list(came.items()))
    if isinstance(sent, complex):
        return same([sent.real, sent.imag], [came.real, came.imag])
    if isinstance(sent, float):
        return repr(sent) == repr(came)
    if isinstance(sent, Ref):
        return sent.id == came.id and same(sent.about, came.about)
    if isinstance(sent, InOut):
        return same(sent.value, came.value)
    if isinstance(sent, Out):
        return (sent.shape, sent.dtype) == (came.shape, came.dtype)
    return bool(sent == came)


def _same_tensor(sent: Tensor, came: Any) -> bool:
    """Compares names, shapes and bytes, independent of how ``as_tensor`` packs an array."""
    if type(came) is not Tensor or (came.dtype, came.shape) != (sent.dtype, sent.shape):
        return False
    if sent.dtype == "strings":
        return list(sent.data) == list(came.data)
    return bytes(sent.data) == bytes(came.data)


def little(given: np.ndarray[Any, Any]) -> bytes:
    """The bytes of an array on the wire, computed with numpy alone."""
    if given.dtype.byteorder == ">":
        given = given.astype(given.dtype.newbyteorder("<"))
    return given.tobytes("C")


FLOAT8 = [name for name in NAMES if hasattr(ml_dtypes, name)]
