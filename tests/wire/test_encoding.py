"""Encoded arrays: encoding and decoding, their loss, values that cannot be encoded, and invalid bytes of a peer."""

from __future__ import annotations

import struct
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stnp

from rpcsys.errors import ProtocolError, UsageError, ValueNotSupported
from rpcsys.wire import encoding, frames, values
from rpcsys.wire.encoding import Encoded
from rpcsys.wire.head import parse
from rpcsys.wire.tensor import Tensor

COMPRESSED = ("zlib", "zstd")
ALL = ("float16", "int8", *COMPRESSED, *(f"{a}+{b}" for a in ("float16", "int8") for b in COMPRESSED))
FEATURES = np.random.default_rng(0).standard_normal((4, 16, 7, 7)).astype("f4")


def crossed(value, how):
    """``value`` after its transfer, and its encoding."""
    head, buffers = frames.encode_head({"v": encoding.encode(value, how)})
    parsed = parse(head)
    assert parsed.sizes == tuple(len(buffer) for buffer in buffers)
    came = values.build(parsed.head["v"], [bytes(buffer) for buffer in buffers])
    return came.numpy(), parsed.head["v"].get("how", "")


@pytest.mark.parametrize("how", ALL)
def test_an_array_is_decoded_with_its_type_and_shape(how):
    came, _ = crossed(FEATURES, how)
    assert (came.dtype, came.shape) == (FEATURES.dtype, FEATURES.shape)
    lossless = how in COMPRESSED
    assert np.abs(came - FEATURES).max() <= (0 if lossless else np.abs(FEATURES).max() / 200)


floats = stnp.arrays(
    st.sampled_from(["f4", "f8"]),
    stnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    elements=st.floats(-60000, 60000, width=32),
)


@given(floats)
def test_the_error_of_int8_is_half_a_step_at_most(array):
    came, _ = crossed(array, "int8")
    step = np.abs(array).max(initial=0) / 127
    assert np.abs(came - array).max(initial=0) <= step * 0.5001 + 1e-30


@given(floats)
def test_float16_is_rounded_as_in_numpy(array):
    came, _ = crossed(array, "float16")
    assert np.array_equal(came, array.astype("f2").astype(array.dtype))


any_array = stnp.arrays(
    st.sampled_from(["f4", "f2", "i8", "u1", "?", "c8", "S3", "U2"]),
    stnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
)


@given(any_array, st.sampled_from(COMPRESSED))
def test_compression_is_lossless(array, how):
    came, _ = crossed(array, how)
    assert came.tobytes() == array.tobytes()
    assert (came.dtype, came.shape) == (array.dtype, array.shape)


def test_an_array_that_saves_no_bytes_is_not_encoded():
    noise = np.frombuffer(np.random.default_rng(0).bytes(4096), "u1")
    assert encoding.encode(noise, "zstd") is noise
    assert crossed(noise[:8].view("f4") * 0 + 1, "int8+zlib")[1] == ""  # the scale alone is as large
    assert crossed(np.frombuffer(np.random.default_rng(0).bytes(4096), "i1").astype("f4"), "int8+zlib")[1] == "int8"
    empty = np.empty((0, 3), "f4")
    assert encoding.encode(empty, "int8") is empty


def test_strided_arrays_and_memoryviews_are_encoded():
    turned = FEATURES.transpose(3, 1, 0, 2)
    assert np.allclose(crossed(turned, "float16")[0], turned, atol=1e-2)
    assert np.array_equal(crossed(FEATURES.astype(">f4"), "zlib")[0], FEATURES)
    tensor = Tensor("float32", (2, 2), np.ones((2, 2), "f4").tobytes())
    assert np.array_equal(crossed(tensor, "float16")[0], np.ones((2, 2)))


def test_zeros_and_tiny_values_become_zeros():
    for array in (np.zeros(100, "f4"), np.full(100, 1e-40, "f4"), np.full(100, 1e-300)):
        assert np.abs(crossed(array, "int8")[0] - array).max() < 1e-29


@pytest.mark.parametrize("how", ["", "int4", "zlib+int8", "int8+float16", "int8+zlib+zstd", "int8+", 7, None])
def test_an_unknown_encoding_is_refused(how):
    with pytest.raises(UsageError, match="is no encoding; there are float16, int8, zlib, zstd"):
        encoding.encode(FEATURES, how)


def test_no_encoding_applies_to_sequences_and_maps():
    assert encoding.applies("zlib", "int64")
    kinds = ("strings", "seq(tensor(float))", "seq(map(int64,tensor(float32)))", "optional(tensor(float))")
    assert not any(encoding.applies("zlib", kind) for kind in kinds)


@pytest.mark.parametrize(
    ("value", "how", "says"),
    [
        ([1.0], "zlib", "boxes is a list"),
        (np.arange(100), "int8", "boxes is an array of int64, which int8 does not apply to"),
        (np.arange(100, dtype="f2"), "float16", "an array of float16"),
        (np.array(["a"] * 100, object), "zlib", "an array of strings"),
        (np.full(100, 7e4, "f4"), "float16", "boxes has values beyond 65504"),
        (np.full(100, np.nan, "f4"), "int8", "not finite"),
        (np.array([np.inf] + 99 * [0], "f4"), "int8", "not finite"),
    ],
)
def test_a_value_that_an_encoding_does_not_apply_to_is_refused(value, how, says):
    with pytest.raises(ValueNotSupported, match=says):
        encoding.encode(value, how, "boxes")


@pytest.mark.parametrize(
    ("least", "most", "largest", "median"),
    [(2.0**-14, 65504, 2.0**-11, 0.00017), (2.0**-24, 2.0**-14, 0.3334, 0.006), (1e-6, 1e-5, 0.029, 0.004)],
)
def test_float16_costs_what_the_documents_say(least, most, largest, median):
    powers = np.random.default_rng(0).uniform(np.log(least), np.log(most), 100_000)
    array = np.clip(np.exp(powers), least, most).astype("f4")
    came, _ = crossed(array, "float16")
    errors = np.abs(came - array) / array
    assert largest * 0.9 < errors.max() <= largest
    assert np.median(errors) == pytest.approx(median, rel=0.1)
    assert np.abs(came - array).max() <= max(most * 2.0**-12, 2.0**-25)


def test_float16_at_its_ends():
    array = np.array([65504, 65519.99, 2.0**-24, 2.0**-25, 3e-8], "f4")
    assert crossed(array, "float16")[0].tolist() == [65504, 65504, 2.0**-24, 0, 2.0**-24]
    with pytest.raises(ValueNotSupported, match="values beyond 65504"):
        encoding.encode(np.full(4, 65520, "f4"), "float16")
    normal = np.random.default_rng(0).standard_normal(100_000).astype("f4")
    moved = crossed(normal, "float16")[0] - normal
    assert np.linalg.norm(moved) / np.linalg.norm(normal) == pytest.approx(0.0002, rel=0.1)


def test_float16_keeps_infinities():
    array = np.array([np.inf, -np.inf, np.nan, 1], "f4")
    assert np.array_equal(crossed(array, "float16")[0], array, equal_nan=True)


def test_results_are_encoded_by_index():
    a, b = FEATURES, np.arange(1000)
    assert encoding.encoded((a, b), None) == (a, b)
    first, second = encoding.encoded((a, b), {"0": "int8", "1": "zlib"})
    assert (first.how, second.how) == ("int8", "zlib")
    assert encoding.encoded(a, {"0": "float16"}).how == "float16"
    for wanted in ({"2": "int8"}, {"-1": "int8"}, {"x": "int8"}, ["int8"]):
        with pytest.raises(ValueNotSupported):
            encoding.encoded((a, b), wanted)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the standard library has zstd")
def test_without_a_package_for_zstd(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    encoding._zstd.cache_clear()
    try:
        with pytest.raises(ValueNotSupported, match=r"pip install 'rpcsys\[zstd\]'"):
            encoding.encode(FEATURES, "zstd")
    finally:
        encoding._zstd.cache_clear()


def test_known_encodings_follow_the_installed_packages():
    assert encoding.known(lambda package: True) == ["float16", "int8", "zlib", "zstd"]
    assert encoding.known(lambda package: package == "zlib") == ["zlib"]
    assert encoding.known(lambda package: package == "compression.zstd") == ["zstd"]


def test_without_numpy(monkeypatch):
    sent = encoding.encode(FEATURES, "int8")
    monkeypatch.setattr(encoding.dtypes, "import_numpy", lambda: None)
    with pytest.raises(ValueNotSupported, match="int8 need numpy at both ends"):
        encoding.decode(sent)
    ones = Tensor("float32", (50,), bytes(200))
    with pytest.raises(ValueNotSupported, match="int8 need numpy at both ends"):
        encoding.encode(ones, "int8")
    assert bytes(encoding.decode(encoding.encode(ones, "zlib")).data) == bytes(200)


# ------------------------------------------------------------------ what a peer may not send


@pytest.mark.parametrize(
    "changes",
    [
        {"how": "int4"},
        {"how": None},
        {"how": ["int8"]},
        {"how": "int8", "dtype": "int64"},
        {"how": "zlib", "dtype": "strings"},
        {"dtype": "object"},
        {"shape": [-1]},
        {"shape": [1 << 62, 8]},
        {"size": -1},
        {"size": "5"},
        {"buffer": 1},
    ],
)
def test_an_invalid_head_is_refused(changes):
    head = {"@": "encoded", "how": "int8", "dtype": "float32", "shape": [2], "size": 10, "buffer": 0}
    assert parse(values.dump({"v": head}).encode()).sizes == (10,)
    with pytest.raises(ProtocolError):
        parse(values.dump({"v": {**head, **changes}}).encode())


@pytest.mark.parametrize("word", COMPRESSED)
def test_a_stream_longer_than_its_shape_is_refused(word):
    packed = encoding._compress(bytes(50_000_000), word)
    with pytest.raises(ProtocolError, match="other bytes than the 400 that its shape wants"):
        encoding.decode(Encoded(word, "float32", (100,), packed))


@given(st.sampled_from(ALL), st.binary(max_size=200), st.lists(st.integers(0, 9), max_size=3))
def test_any_bytes_are_decoded_or_refused(how, data, shape):
    try:
        came = encoding.decode(Encoded(how, "float32", shape, data))
    except ProtocolError:
        return
    assert came.numpy().shape == tuple(shape)


def test_a_broken_stream_is_refused():
    whole = zlib.compress(bytes(400))
    for data in (whole[:-5], whole[:3], b"", b"\x00" * 30):
        with pytest.raises(ProtocolError):
            encoding.decode(Encoded("zlib", "float32", (100,), data))
    for scale in (float("nan"), float("inf"), 0.0, -1.0):
        with pytest.raises(ProtocolError, match="whose scale"):
            encoding.decode(Encoded("int8", "float32", (2,), struct.pack("<d2b", scale, 1, 2)))
