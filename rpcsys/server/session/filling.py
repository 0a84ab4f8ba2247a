"""Arrays filled with plausible numbers, as tuners ask for before they measure a function.

TVM has this in an optional part of its runtime (libtvm_runtime_extra). What tuners need of it is that the
numbers are ordinary: code may run faster or slower on zeros and denormals than on what a network computes.
"""

from __future__ import annotations

import array
import random
from typing import Any

NAMES = ("tvm.contrib.random.random_fill", "tvm.contrib.random.random_fill_for_measure")

BLOCK = 4096
"""Different numbers in an array; after that they come again."""

_CODES = {
    "float32": "f",
    "float64": "d",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
}


def fill(target: Any) -> None:
    """Write numbers from 1 to 10 into a native array. Types that have no such numbers here get bytes of 0 and 1.

    (Those are truth values for bool, small numbers for int8, and next to nothing for float16 and narrower.)
    """
    data = target.data
    block = memoryview(_block(target.dtype)).cast("B")
    for start in range(0, len(data), len(block)):
        piece = data[start : start + len(block)]
        piece[:] = block[: len(piece)]


def _block(dtype: str) -> Any:
    # Always the same numbers, so that two measurements differ in nothing but the board.
    source = random.Random(0)
    code = _CODES.get(dtype)
    if code is None:
        return bytes(source.randrange(2) for _ in range(BLOCK))
    draw = source.uniform if code in "fd" else source.randint
    return array.array(code, (draw(1, 10) for _ in range(BLOCK)))
