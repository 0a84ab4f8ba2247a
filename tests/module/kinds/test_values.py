"""Inputs as a model declares them: described, and checked before a runtime gets them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rpcsys.errors import RemoteArgumentError
from rpcsys.module.kinds.values import Value, shape_text
from rpcsys.wire.tensor import Tensor


def test_a_value_is_described() -> None:
    assert Value("x", "float32", [None, 4]).describe() == {"name": "x", "dtype": "float32", "shape": [None, 4]}
    assert Value("s", None, type_="seq(tensor(float))").describe()["dtype"] == "seq(tensor(float))"
    assert shape_text([None, 4]) == "[?, 4]"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (np.zeros((2, 5), "f4"), r"input 'x' wants float32 \[\?, 4\], and got float32 \[2, 5\]$"),
        (np.zeros((2, 4)), r"and got float64 \[2, 4\]; convert it with \.astype\('float32'\)"),
        (np.zeros(4, "f4"), r"and got float32 \[4\]"),
        ([[1], [2, 3]], "input 'x' cannot be made an array"),
    ],
)
def test_what_does_not_fit(given: Any, says: str) -> None:
    with pytest.raises(RemoteArgumentError, match=says):
        Value("x", "float32", [None, 4]).check(given)


def test_what_fits() -> None:
    value = Value("x", "float32", [None, 4])
    turned = value.check(np.arange(8, dtype=">f4").reshape(2, 4))
    assert turned.dtype.isnative
    assert turned.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert value.check(Tensor("float32", (1, 4), bytearray(16))).shape == (1, 4)
    anything = object()
    assert Value("s", None, type_="i32").check(anything) is anything
