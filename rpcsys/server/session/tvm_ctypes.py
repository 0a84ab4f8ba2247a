"""TVM's runtime without the ``tvm`` package: libtvm_ffi and libtvm_runtime through ctypes, and nothing else."""

from __future__ import annotations

import array
import random
from collections.abc import Callable
from typing import Any

from rpcsys.ffi import calls, library, tvm

#: What tuners call before they measure. TVM has it in an optional part of its runtime, libtvm_runtime_extra.
FILLING = ("tvm.contrib.random.random_fill", "tvm.contrib.random.random_fill_for_measure")
#: Different numbers in a filled array; after that they come again.
BLOCK = 4096
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


class LibraryRuntime:
    """TVM's runtime as its libraries have it. Raises `NativeError`."""

    def __init__(self) -> None:
        library.load_runtime()
        for name in FILLING:
            if calls.find_global(name) is None:
                self.register(name, fill)

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Put ``function`` in the place of whatever is registered as ``name``."""
        calls.register(name, function)

    def call(self, name: str, *args: Any) -> Any:
        """Call the function registered as ``name``."""
        return calls.get_global(name)(*args)

    def load_module(self, path: str) -> Any:
        """A module of the shared library at ``path``."""
        return tvm.load_module(path).object


def fill(target: Any) -> None:
    """Write numbers from 1 to 10 into a native array: code may run faster or slower on zeros and denormals.

    Types that have no such numbers here get bytes of 0 and 1: truth values for bool, small numbers for int8, next to
    nothing for float16 and narrower.
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
