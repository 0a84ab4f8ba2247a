"""Values sent to a session's device and back: plain values, arrays, encoded arrays; and values without a form."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from rpcsys.errors import RemoteError, ValueNotSupported
from rpcsys.wire import encoding
from tests.wire import strategies


@pytest.mark.parametrize(
    "value",
    [0, -1, 2**70, 1.5, float("inf"), "text", "\ud800", b"bytes", None, True, 2j, [], [1, [2]], (), (1, (2,)),
     {"a": {"@": 1}}, {1: (2,), None: 3}],
)  # fmt: skip
def test_plain_values_come_back(shared, value):
    came = shared.get_function("testing.echo")(value)
    assert came == value
    assert type(came) is type(value)


@given(strategies.results)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_comes_back(shared, value):
    came = shared.get_function("testing.echo")([value])[0]
    assert strategies.same(value, as_on_the_wire(came))


def as_on_the_wire(value):
    """``value`` with arrays as on the wire, for a comparison with the sent value."""
    if isinstance(value, np.ndarray):
        return strategies.as_tensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(as_on_the_wire, value))
    if isinstance(value, dict):
        return {key: as_on_the_wire(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("name", [*strategies.NAMES, *strategies.WIDE])
def test_arrays_of_every_dtype(shared, name):
    array = np.ones((2, 3), strategies.dtypes.numpy_dtype(name)) if name[-1] != "0" else np.ndarray(3, name)
    came = shared.get_function("testing.echo")(array)
    assert came.dtype == array.dtype
    assert came.tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1 << 18,), (5 << 20,)])
def test_arrays_of_every_size(shared, shape):
    array = np.random.default_rng(0).random(shape, dtype="f4")
    came = shared.get_function("testing.echo")(array)
    assert np.array_equal(came, array)
    assert came.shape == shape
    assert not came.size or came.flags.writeable


def test_large_vocabularies_and_classifier_outputs(shared):
    """The strings of a vocabulary, and a classifier's output for thousands of rows, a map each."""
    words = np.array([f"word-{number}" for number in range(300_000)], object)
    came = shared.get_function("testing.echo")(words)
    assert (came.shape, came.dtype) == (words.shape, words.dtype)
    assert (came == words).all()
    rows = [{label: label / 7 for label in range(10)} for _ in range(5000)]
    assert shared.get_function("testing.echo")(rows) == rows


def test_later_results_do_not_change_a_result(shared):
    echo = shared.get_function("testing.echo")
    first = echo(np.full(2 << 20, 7, "u1"))
    for value in range(5):
        echo(np.full(2 << 20, value, "u1"))
    assert (first == 7).all()


def test_arguments_and_results_may_be_encoded(shared):
    assert {"float16", "int8", "zlib"} <= set(shared.info["capabilities"]["encodings"])
    echo = shared.get_function("testing.echo")
    x = np.linspace(-1, 1, 1000, dtype="f4")
    came = echo(encoding.encode(x, "int8"))  # decoded there, and back as it is
    assert came.dtype == x.dtype
    assert 0 < np.abs(came - x).max() < 0.01
    halved, rest = echo.encoding({"0": "float16+zlib"})(x, "rest")
    assert np.array_equal(halved, x.astype("f2").astype("f4"))
    assert rest == "rest"
    assert np.array_equal(echo(x), x)
    assert np.array_equal(echo.encoding({"0": "zlib"}).submit(x).result(), x)


def test_a_failed_encoding_on_the_device_ends_only_its_call(shared):
    echo = shared.get_function("testing.echo")
    for wanted in ({"0": "int8"}, {"1": "zlib"}, {"0": "int4"}):
        with pytest.raises((ValueNotSupported, RemoteError)):
            echo.encoding(wanted)(np.arange(1000))
    with pytest.raises(RemoteError, match="other bytes than the 400"):
        echo(encoding.Encoded("zlib", "float32", (100,), zlib.compress(b"short")))
    assert echo(1) == 1


def test_several_results_are_a_tuple(shared):
    assert shared.get_function("testing.echo")(1, "two") == (1, "two")


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, np.array([object()]), 10**5000], ids=lambda value: type(value).__name__
)
def test_a_value_without_a_form_does_not_end_the_session(shared, value):
    echo = shared.get_function("testing.echo")
    with pytest.raises(ValueNotSupported):
        echo(value)
    assert echo(1) == 1
