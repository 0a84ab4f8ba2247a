"""Every form of a value, encoded and decoded; values without a form; and invalid heads of a peer."""

from __future__ import annotations

import array
import collections
import enum
import itertools
import json
import math
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpcsys.errors import LimitExceeded, ProtocolError, ValueNotSupported
from rpcsys.wire import frames, values
from rpcsys.wire.head import MAX_BUFFERS, MAX_DEPTH, parse
from rpcsys.wire.tensor import Tensor
from rpcsys.wire.values import InOut, Out, Ref
from tests.wire import strategies
from tests.wire.strategies import same


def there_and_back(value):
    head, buffers = frames.encode_head({"v": value})
    parsed = parse(head)
    assert parsed.sizes == tuple(len(buffer) for buffer in buffers)
    return values.build(parsed.head["v"], [bytes(buffer) for buffer in buffers])


@given(strategies.values)
@example({"@": {"@": 1}})
@example("\ud83d\ude00")
@example({"\ud83d\ude00": 1, "😀": 2})
@example([-0.0, 0.0, math.nan, math.inf, -math.inf, complex(math.nan, -math.inf)])
@example({(1, (b"k", None)): [()], 1.5: {}})
@example(Ref(0, {"long": "n" * 5000, "shape": (3, math.nan)}))
def test_every_value_comes_back(value):
    assert same(value, there_and_back(value))


@given(strategies.laid_out())
def test_array_bytes_are_little_endian_in_c_order(given_array):
    _, buffers = frames.encode_head({"v": given_array})
    assert b"".join(map(bytes, buffers)) == strategies.little(given_array)
    came = there_and_back(given_array).numpy()
    assert came.shape == given_array.shape
    assert came.dtype == given_array.dtype.newbyteorder("=") or not given_array.dtype.itemsize
    assert came.tobytes() == strategies.little(given_array)


@pytest.mark.parametrize("name", [*strategies.NAMES, *strategies.WIDE])
def test_each_dtype_by_itself(name):
    dtype = values.dtypes.numpy_dtype(name)
    sent = np.zeros((2, 3), dtype) if dtype.itemsize else np.ndarray((2, 3), dtype)
    came = there_and_back(sent)
    assert came.dtype == name
    assert came.shape == (2, 3)
    assert came.numpy().dtype == dtype


def test_c_order_is_not_copied():
    sent = np.arange(12.0)
    _, (buffer,) = frames.encode_head({"v": sent})
    assert np.shares_memory(np.asarray(buffer), sent)


def test_a_received_array_without_numpy():
    came = there_and_back(array.array("h", [1, -2]))
    assert (came.view().format, came.view().shape, came.tolist()) == ("h", (2,), [1, -2])
    assert there_and_back(np.float32(2.5)).tolist() == 2.5
    assert there_and_back(np.complex128(1 + 2j)).numpy() == 1 + 2j
    assert there_and_back(np.zeros((2, 0), "f4")).tolist() == [[], []]
    assert there_and_back(np.array([[1, 2], [3, 4]], "f2")).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert there_and_back(np.array([["a"], ["b"]], object)).tolist() == [["a"], ["b"]]
    assert there_and_back(np.array("one", object)).tolist() == "one"
    assert there_and_back(np.zeros(3, ml_dtypes.bfloat16)).view().nbytes == 6
    with pytest.raises(ValueNotSupported, match="bfloat16"):
        there_and_back(np.zeros(3, ml_dtypes.bfloat16)).tolist()


class Colour(enum.IntEnum):
    RED = 1


class Name(str, enum.Enum):
    ONE = "one"


class Point(NamedTuple):
    x: int
    y: list


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (Colour.RED, 1),
        (Name.ONE, "one"),
        (Point(1, [2]), (1, [2])),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.defaultdict(list, {1: []}), {1: []}),
        (np.bytes_(b"x"), b"x"),
    ],
)
def test_a_subclass_arrives_as_its_base_class(sent, expected):
    came = there_and_back(sent)
    assert came == expected
    assert type(came) is type(expected)


def test_an_object_with_an_array_method_is_an_array():
    class Wrapped:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3)

    assert there_and_back(Wrapped()).tolist() == [0, 1, 2]
    assert there_and_back(np.array(["ab", "c"], dtype=np.dtypes.StringDType())).tolist() == ["ab", "c"]


def nested(depth, wrap=lambda inner: [inner]):
    value = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {1: v}, lambda v: {"k": v}])
def test_nested_as_deep_as_allowed(wrap):
    assert same(nested(MAX_DEPTH, wrap), there_and_back(nested(MAX_DEPTH, wrap)))
    with pytest.raises(ValueNotSupported, match="nested deeper"):
        frames.encode_head({"v": nested(MAX_DEPTH + 1, wrap)})


class Cycle:
    def __init__(self):
        self.list = []
        self.list.append(self.list)


REFUSED = [
    (object(), "builtins.object"),
    (np.array([object()]), "object"),
    (np.array([(1, 2.0)], dtype="i4,f8"), "form on the wire"),
    (np.array(["text", 1], dtype=object), "object"),
    ({1, 2}, "builtins.set"),
    (memoryview(np.zeros(2, ">i4")), ">i"),
    (Cycle().list, "nested deeper"),
    (10**5000, "digits"),
    ({10**5000: 1}, "digits"),
    (InOut(5), "int is none"),
    (InOut([1.0]), "list is none"),
    (InOut(b"raw"), "bytes is none"),
    (InOut({"@": "tensor"}), "dict is none"),
    (Out((2,), "f4"), "'f4'"),
    (Out((2, -1), "float32"), "size"),
    (Out((2**40, 2**40), "float32"), "size"),
    (Tensor("float32", (3,), b"12345"), "5 bytes"),
    (Tensor("float32", (3,), array.array("f", [1, 2, 3])), "3 bytes"),
    (Tensor("floaty", (3,), b""), "floaty"),
    (Tensor("strings", (3,), ["a"]), "1 strings"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_value_without_a_form_is_refused_by_the_sender(value, message):
    with pytest.raises(ValueNotSupported, match=message.replace("[", r"\[")):
        frames.encode_head({"v": value})


def test_too_large_a_head_is_refused_by_the_sender():
    with pytest.raises(LimitExceeded, match="send long lists as arrays"):
        frames.encode_head({"v": list(range(3_000_000))})
    with pytest.raises(LimitExceeded, match="join them"):
        frames.encode_head({"v": [b""] * (MAX_BUFFERS + 1)})


def test_an_extent_may_be_any_whole_number():
    assert Out((np.int64(2), True), "float32").shape == (2, 1)
    with pytest.raises(TypeError):
        Out((2.0,), "float32")


def test_values_share_nothing_with_the_parsed_head():
    parsed = parse(b'{"v":{"@":"ref","id":1,"shape":[1,2]},"l":[[1]],"d":{"k":{}}}')
    before = json.dumps(parsed.head)
    ref = values.build(parsed.head["v"], ())
    ref.about["shape"].append(3)
    values.build(parsed.head["l"], ())[0].append(2)
    values.build(parsed.head["d"], ())["k"]["x"] = 1
    assert json.dumps(parsed.head) == before


BROKEN = [
    "[]", "1", "null", "{", '{"v":NaN}', '{"v":Infinity}', '{"v":}', '{"v":1}x', "\ufeff{}",
    '{"v":' + "9" * 5000 + "}",
    '{"v":{"@":1}}', '{"v":{"@":null,"x":{"@":"none"}}}', '{"v":{"@":"none"}}', '{"v":{"@":["tensor"]}}',
    '{"v":{"@":"tensor"}}', '{"v":{"@":"tensor","dtype":"float32","shape":[1]}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":[1],"buffer":1}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":[1],"buffer":false}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":[1],"buffer":0.0}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":[1.0],"buffer":0}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":[-1],"buffer":0}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":[true],"buffer":0}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":4,"buffer":0}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":[HUGE,HUGE],"buffer":0}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":[0,HUGE],"buffer":0}}',
    '{"v":{"@":"tensor","dtype":"S0","shape":[HUGE],"buffer":0}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":[RANKS],"buffer":0}}',
    '{"v":{"@":"tensor","dtype":"object","shape":[1],"buffer":0}}',
    '{"v":{"@":"tensor","dtype":5,"shape":[1],"buffer":0}}',
    '{"v":{"@":"tensor","dtype":"S99999999","shape":[1],"buffer":0}}',
    '{"v":{"@":"tensor","dtype":"float32","shape":[1],"buffer":0,"device":7}}',
    '{"v":{"@":"strings","shape":[2],"size":15,"buffer":0}}',
    '{"v":{"@":"strings","shape":[1],"size":-1,"buffer":0}}',
    '{"v":{"@":"strings","shape":[1],"size":"8","buffer":0}}',
    '{"v":{"@":"strings","shape":1,"size":8,"buffer":0}}',
    '{"v":{"@":"strings","shape":[0,HUGE],"size":0,"buffer":0}}',
    '{"v":{"@":"bytes","size":-1,"buffer":0}}', '{"v":{"@":"bytes","size":1e3,"buffer":0}}',
    '{"v":{"@":"bytes","size":9223372036854775808,"buffer":0}}', '{"v":{"@":"text","size":"1","buffer":0}}',
    '{"v":[{"@":"bytes","size":0,"buffer":0},{"@":"bytes","size":0,"buffer":0}]}',
    '{"v":{"@":"tuple"}}', '{"v":{"@":"tuple","items":{}}}', '{"v":{"@":"dict","items":[[1]]}}',
    '{"v":{"@":"dict","items":[1]}}', '{"v":{"@":"tuple","items":[{"@":"none"}]}}',
    '{"v":{"@":"float","value":1.5}}', '{"v":{"@":"float","value":"1"}}', '{"v":{"@":"float","value":["nan"]}}',
    '{"v":{"@":"complex","value":[1,2]}}', '{"v":{"@":"complex","value":[1.0]}}',
    '{"v":{"@":"complex","value":[1.0,{"@":"float","value":"x"}]}}',
    '{"v":{"@":"ref"}}', '{"v":{"@":"ref","id":-1}}', '{"v":{"@":"ref","id":1,"x":{"@":"none"}}}',
    '{"v":{"@":"out","dtype":"float32"}}', '{"v":{"@":"out","dtype":"float32","shape":[HUGE]}}',
    '{"v":{"@":"inout","value":1}}', '{"v":{"@":"inout","value":{"@":"bytes","size":0,"buffer":0}}}',
    '{"v":{"@":"inout","value":{"@":["tensor"]}}}',
    '{"v":' + "[" * 1000 + "]" * 1000 + "}", '{"v":' + "[" * 500_000 + "]" * 500_000 + "}",
    '{"v":{"@":"ref","id":1,"x":' + "[" * 200 + "]" * 200 + "}}",
]  # fmt: skip


@pytest.mark.parametrize("head", BROKEN, ids=lambda head: head[:60])
def test_what_breaks_a_rule_is_a_protocol_error(head):
    head = head.replace("HUGE", str(1 << 62)).replace("RANKS", "1," * 64 + "1")
    with pytest.raises(ProtocolError) as caught:
        parse(head.encode())
    assert len(str(caught.value)) <= 250


@pytest.mark.parametrize(
    ("head", "buffers"),
    [
        ('{"v":{"@":"text","size":1,"buffer":0}}', [b"\xff"]),
        ('{"v":{"@":"strings","shape":[1],"size":9,"buffer":0}}', [b"\1\0\0\0\0\0\0\0\x80"]),
        ('{"v":{"@":"strings","shape":[1],"size":9,"buffer":0}}', [b"\2\0\0\0\0\0\0\0a"]),
        ('{"v":{"@":"strings","shape":[1],"size":10,"buffer":0}}', [b"\1\0\0\0\0\0\0\0ab"]),
        ('{"v":{"@":"strings","shape":[1],"size":8,"buffer":0}}', [b"\xff" * 8]),
        ('{"v":{"@":"dict","items":[[[],1]]}}', []),
        ('{"v":{"@":"dict","items":[[{"@":"tuple","items":[{}]},1]]}}', []),
    ],
)
def test_a_value_that_cannot_be_built_is_a_protocol_error(head, buffers):
    parsed = parse(head.encode())
    with pytest.raises(ProtocolError):
        values.build(parsed.head["v"], buffers)


def test_no_head_is_an_empty_one():
    assert (parse(b"").head, parse(b"").sizes) == ({}, ())


def test_unknown_fields_are_ignored():
    parsed = parse(b'{"v":{"@":"tensor","dtype":"uint8","shape":[1],"buffer":0,"layout":{"new":[1]}}}')
    assert values.build(parsed.head["v"], [b"\x07"]).tolist() == [7]


json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 2**64), st.floats(),
        st.sampled_from(["tensor", "strings", "bytes", "text", "tuple", "dict", "float", "ref", "out", "inout",
                         "complex", "nan", "float32", "S0", "U5", "datetime64[0s]", "bfloat16"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["@", "dtype", "shape", "buffer", "size", "sizes", "items", "value", "id", "is"]),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=20,
)  # fmt: skip


@given(json_values, st.data())
def test_any_json_is_a_head_or_a_protocol_error(value, data):
    head = json.dumps({"v": value}).encode()
    try:
        parsed = parse(head)
        if parsed.body_bytes > 1 << 16:
            return
        body = data.draw(st.binary(min_size=parsed.body_bytes, max_size=parsed.body_bytes))
        ends = itertools.accumulate(parsed.sizes)
        values.build(parsed.head["v"], [body[end - size : end] for end, size in zip(ends, parsed.sizes, strict=True)])
    except ProtocolError:
        pass
