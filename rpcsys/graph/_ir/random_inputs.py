"""Seeded random arrays to try a model with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rpcsys.errors import UsageError
from rpcsys.wire.head import MAX_RANK

MAX_ELEMENTS = 1 << 28  # of a random array, drawn in 8 bytes each: more than any network takes at once

Arrays = dict[str, np.ndarray[Any, Any]]


def random_inputs(specs: Sequence[Mapping[str, Any]], seed: int = 0) -> Arrays:
    """Arrays for a model's inputs (name, dtype, shape): floats standard normal, whole numbers 0 and 1.

    The same seed gives the same arrays. An extent that the model leaves free is 1. Raises `UsageError` for an input of
    a dtype without random values (strings, say), of an unknown type or shape, or of more than `MAX_ELEMENTS`.
    """
    rng = np.random.default_rng(seed)
    return {spec["name"]: _draw(rng, spec) for spec in specs}


def _draw(rng: np.random.Generator, spec: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    name = spec["name"]
    if spec.get("shape") is None or "dtype" not in spec:
        raise UsageError(f"the model does not say what array input {name!r} is: give the inputs as an .npz file")
    shape = [extent if isinstance(extent, int) else 1 for extent in spec["shape"]]
    if len(shape) > MAX_RANK or min(shape, default=0) < 0 or math.prod(shape) > MAX_ELEMENTS:
        raise UsageError(f"input {name!r} has more than {MAX_ELEMENTS} elements: give the inputs as an .npz file")
    try:
        dtype = np.dtype(spec["dtype"])
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    raise UsageError(f"input {name!r} is of type {spec['dtype']}: give the inputs as an .npz file")
