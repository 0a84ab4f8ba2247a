"""What tuners fill arrays with."""

from __future__ import annotations

import numpy as np
import pytest

from rpcsys.server.session import filling
from rpcsys.wire.tensor import Tensor


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("count", [0, 1, 4096, 10_000])
def test_numbers_are_ordinary(dtype: str, count: int) -> None:
    values = np.zeros(count, dtype)
    filling.fill(Tensor(dtype, (count,), memoryview(values.view("u1"))))
    assert ((values >= 1) & (values <= 10)).all()
    assert count < 100 or len(set(values.tolist())) > 5


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float16"])
def test_narrow_types_get_something_harmless(dtype: str) -> None:
    values = np.zeros(5000, dtype)
    filling.fill(Tensor(dtype, (5000,), memoryview(values.view("u1"))))
    assert np.isfinite(values.astype("float64")).all()
    assert values.view("u1").max() == 1
