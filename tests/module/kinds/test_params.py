"""Named weights as a module."""

from __future__ import annotations

import array

import ml_dtypes
import numpy as np
import pytest

from rpcsys.errors import ModelError, RemoteArgumentError, UsageError
from rpcsys.module import group, params
from rpcsys.wire.tensor import Tensor
from tests.module.trees import Holder, blob_of, bytes_kind, loaded

__all__ = ["bytes_kind"]


def test_round_trip():
    weights = {
        "b": np.arange(6, dtype="f4").reshape(2, 3), "a": np.ones(0, "i8"), "scalar": np.array(2.5),
        "bf": np.ones(3, ml_dtypes.bfloat16), "plain": array.array("i", [1, 2]), "strided": np.arange(10)[::2],
        "tensor": Tensor("uint8", (2,), b"xy"), "large": np.arange(100_000),
    }  # fmt: skip
    blob = blob_of(params(weights))
    module = loaded(blob)
    assert module["param_names"]() == sorted(weights)
    for name, value in weights.items():
        got = module["get_param"](name)
        want = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert np.array_equal(got, want)
        assert not got.flags.writeable
    assert blob_of(module) == blob


def test_the_order_of_weights_does_not_matter():
    a, b = np.ones(3), np.zeros(2)
    assert blob_of(params({"a": a, "b": b})) == blob_of(params({"b": b, "a": a}))


def test_nothing_is_copied():
    blob = bytearray(blob_of(params({"w": np.zeros(100_000, "u1")})))
    module = loaded(memoryview(blob))
    blob[-1] = 7
    assert module["get_param"]("w")[-1] == 7


@pytest.mark.usefixtures("bytes_kind")
def test_several_modules_share_one():
    shared = params({"w": np.ones(3)})
    root = loaded(blob_of(group([Holder(b"", [shared]), Holder(b"", [shared])])))
    assert root.imports[0].imports[0] is root.imports[1].imports[0]
    assert root["get_param"]("w").tolist() == [1, 1, 1]


def test_unknown_names():
    with pytest.raises(RemoteArgumentError, match=r"no weight 'v'; there is w$"):
        params({"w": np.ones(1)})["get_param"]("v")


@pytest.mark.parametrize("value", ["text", 3, np.array(["a"], object), None])
def test_invalid_weights_are_refused(value):
    with pytest.raises(UsageError, match="'w' is no array of numbers"):
        params({"w": value})


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'[["w"', b'[[1,2'), (b'"float64"', b'"floatxx"'), (b"[4]", b"[5]"), (b"[4]", b"4.5"), (b"[4]", b"[-4]"),
     (b"[4]", b'["4"]')],
)  # fmt: skip
def test_descriptions_that_do_not_match_are_refused(old, new):
    blob = blob_of(params({"w": np.ones(4)}))
    with pytest.raises(ModelError, match=r"is broken|is cut off"):
        loaded(blob.replace(old, new, 1))
