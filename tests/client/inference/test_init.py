"""Arrays as the protocol's tensors: types, ranks, text, encoded ones."""

from __future__ import annotations

import array

import numpy as np
import pytest

from rpcsys.client import inference
from rpcsys.client.inference.urls import parse_urls
from rpcsys.errors import ProtocolError, RemoteArgumentError, ValueNotSupported
from rpcsys.wire import encoding
from rpcsys.wire.inference import NAMES, InferenceError, InferTensor, pack_bytes


class Echo:
    """Carries the tensors nowhere: gives those that it was given, with other shapes or types if a test says so."""

    def __init__(self, change=lambda tensor: tensor) -> None:
        self.change = change
        self.sent: list[InferTensor] = []

    def infer(self, inputs, outputs, deadline_s):
        self.sent = list(inputs)
        return [self.change(tensor) for tensor in inputs]

    def close(self, calls=True):
        pass


def model(carrier, *specs) -> inference.InferenceModel:
    made = inference.InferenceModel.__new__(inference.InferenceModel)
    made._url, made._carrier = parse_urls("http://h:1/v2/models/m")[0], carrier
    made.inputs = made.outputs = specs
    made._lost = False
    return made


@pytest.mark.parametrize("dtype", sorted(set(NAMES) - {"strings", "bfloat16"}))
def test_each_type_goes_both_ways(dtype) -> None:
    x = np.arange(6).astype(dtype).reshape(2, 3)
    y = model(Echo(), {"name": "x"}).call(x.T)
    assert np.array_equal(y, x.T)
    assert y.dtype == x.dtype
    assert y.flags.writeable


def test_text_goes_both_ways() -> None:
    words = np.array([["a", "ü"], ["", "longer"]], dtype=object)
    assert np.array_equal(model(Echo(), {"name": "x"}).call(words), words)


def test_scalars_and_buffers_are_arrays_too() -> None:
    assert model(Echo(), {"name": "x"}).call(np.float32(3)) == 3
    assert model(Echo(), {"name": "x"}).call(array.array("i", [1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize("value", [1, "a", [1.0], None, np.zeros(2, "c8"), np.array([object()])])
def test_what_has_no_form_is_refused(value) -> None:
    with pytest.raises(ValueNotSupported):
        model(Echo(), {"name": "x"}).call(value)


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(RemoteArgumentError, match="takes 1 inputs, not 2"):
        model(Echo(), {"name": "x"}).call(1, 2)


@pytest.mark.parametrize(
    ("given_", "declared", "shape"),
    [
        ([4, 1], [4], [4]), ([4, 1], [None], [4]), ([4, 1], ["n"], [4]), ([1], [], []),
        ([6, 1], [2, None, 1], [2, 3, 1]),
        ([4, 1], [5], [4, 1]), ([4, 1], [None, "n", 1], [4, 1]), ([4, 1], None, [4, 1]), ([4, 1], [2, 9], [4, 1]),
        ([0, 1], [None], [0]),
    ],
)  # fmt: skip
def test_an_output_has_its_declared_rank(given_, declared, shape) -> None:
    spec = {"name": "x", **({} if declared is None else {"shape": declared})}
    y = model(Echo(lambda tensor: tensor._replace(shape=tuple(given_))), spec).call(np.zeros(given_, "f4"))
    assert list(y.shape) == shape


def test_float16_goes_as_such_and_comes_back_as_declared() -> None:
    carrier = Echo()
    x = np.linspace(-2, 2, 9, dtype="f4")
    y = model(carrier, {"name": "x", "dtype": "float32"}).call(encoding.encode(x, "float16", always=True))
    assert [(tensor.datatype, tensor.shape, len(tensor.data)) for tensor in carrier.sent] == [("FP16", (9,), 18)]
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, x.astype("f2").astype("f4"))


@pytest.mark.parametrize("size", [0, 1, 9])
def test_int8_goes_with_its_scale(size) -> None:
    carrier = Echo()
    x = np.linspace(-2, 2, size, dtype="f4")
    model(carrier, {"name": "x", "dtype": "float32"}).call(encoding.encode(x, "int8", always=True))
    data, scale = carrier.sent
    assert [(data.name, data.datatype), (scale.name, scale.datatype)] == [("x", "INT8"), ("x.scale", "FP64")]
    assert (data.shape, scale.shape) == ((size,), (1,))
    decoded = np.frombuffer(data.data, "i1") * np.frombuffer(scale.data, "f8")
    np.testing.assert_allclose(decoded, x, atol=0.01)


@pytest.mark.parametrize("change", [
    lambda tensor: tensor._replace(name="y"),
    lambda tensor: InferTensor("x", "BYTES", (3,), pack_bytes([b"a"])),
    lambda tensor: InferTensor("x", "BYTES", (1,), b"\x09\0\0\0a"),
    lambda tensor: InferTensor("x", "BYTES", (1,), pack_bytes([b"\xff"])),
])  # fmt: skip
def test_an_answer_that_is_none_is_an_error_with_the_url(change) -> None:
    with pytest.raises(ProtocolError, match="http://h:1/v2/models/m"):
        model(Echo(change), {"name": "x"}).call(np.zeros(3, "f4"))


def test_an_error_of_the_parser_is_one_of_the_protocol() -> None:
    def fail(tensor):
        raise InferenceError("no outputs")

    with pytest.raises(ProtocolError, match="no outputs"):
        model(Echo(fail), {"name": "x"}).call(np.zeros(3, "f4"))
