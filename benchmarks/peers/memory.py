"""Array memory for both ends: numpy arrays, or plain bytes without numpy."""

from __future__ import annotations

from typing import Any

try:
    import numpy as np
except ModuleNotFoundError:
    np = None


def array(size: int) -> Any:
    """``size`` bytes of float32, touched once: a numpy array, or a memoryview of a bytearray."""
    if np is None:
        return memoryview(bytearray(size)).cast("f")
    return np.ones(size // 4, "float32")


def octets(size: int) -> memoryview:
    """``size`` bytes of reusable memory for receiving, touched once."""
    return memoryview(array(size)).cast("B")
