"""Random arrays for a model's inputs."""

from __future__ import annotations

import numpy as np
import pytest

from rpcsys.errors import UsageError
from rpcsys.graph._ir.random_inputs import random_inputs


def test_they_follow_the_specification_and_the_seed() -> None:
    specs = [
        {"name": "x", "dtype": "float16", "shape": ["batch", 3, None]},
        {"name": "n", "dtype": "int64", "shape": []},
        {"name": "b", "dtype": "bool", "shape": [4]},
    ]
    first, again, other = (random_inputs(specs, seed) for seed in (5, 5, 6))
    assert {name: (value.dtype.name, value.shape) for name, value in first.items()} == {
        "x": ("float16", (1, 3, 1)),
        "n": ("int64", ()),
        "b": ("bool", (4,)),
    }
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["x"], other["x"])


def test_a_type_without_random_values_asks_for_a_file() -> None:
    with pytest.raises(UsageError, match=r"input 'words' is of type strings: give the inputs as an \.npz"):
        random_inputs([{"name": "words", "dtype": "strings", "shape": [2]}])


@pytest.mark.parametrize("spec", [{"name": "x"}, {"name": "x", "dtype": "float32"}, {"name": "x", "shape": [1]}])
def test_an_input_of_which_nothing_is_known_asks_for_a_file(spec: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"does not say what array input 'x' is: give the inputs as an \.npz"):
        random_inputs([spec])
