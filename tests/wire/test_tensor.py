"""Tensors converted to arrays for functions and users."""

from __future__ import annotations

import numpy as np

from rpcsys.wire import dtypes
from rpcsys.wire.tensor import Tensor, as_array

BYTES = np.arange(4, dtype="int8")
TENSOR = Tensor("int8", (2, 2), memoryview(BYTES))


def test_an_array_shares_the_tensors_memory():
    made = as_array(TENSOR)
    assert made.tolist() == [[0, 1], [2, 3]]
    assert np.shares_memory(made, BYTES)


def test_where_numpy_is_not_in_use_a_tensor_stays_one(monkeypatch):
    monkeypatch.setattr(dtypes, "loaded_numpy", lambda: None)
    assert as_array(TENSOR) is TENSOR
    assert as_array(TENSOR, np).tolist() == [[0, 1], [2, 3]]


def test_an_element_type_that_numpy_lacks_stays_a_tensor(monkeypatch):
    monkeypatch.setattr(dtypes, "numpy_dtype", lambda name: None)
    assert as_array(TENSOR) is TENSOR
