"""TVM's runtime without the ``tvm`` package: libtvm_ffi and libtvm_runtime through ctypes, and nothing else."""

from __future__ import annotations

import array
import functools
from typing import Any

from rpcsys.ffi import calls, library, tvm
from rpcsys.server.session.tvm_session import Runtime
from rpcsys.wire import dtypes

#: Functions that tuners call before they measure. TVM has them in an optional library, libtvm_runtime_extra.
FILLING = ("tvm.contrib.random.random_fill", "tvm.contrib.random.random_fill_for_measure")
BLOCK = 4096  # different numbers in a filled array, which then repeat


def library_runtime() -> Runtime:
    """Load TVM's runtime from its libraries. Raises `NativeError`."""
    library.load_runtime()
    _complete()
    return Runtime(calls.register, calls.known_global, _load_module)


def _load_module(path: str) -> Any:
    return tvm.load_module(path).object


@functools.lru_cache(maxsize=None)
def _complete() -> None:
    """Register `FILLING` where the libraries lack them: once for this process and its copies."""
    for name in FILLING:
        if calls.find_global(name) is None:
            import random  # noqa: F401 - once for all sessions, and not where TVM has the functions

            calls.register(name, fill)


def fill(target: Any) -> None:
    """Write numbers from 1 to 10 into a native array: code may run faster or slower on zeros and denormals.

    Other types get bytes of 0 and 1.
    """
    data = target.data
    block = memoryview(_block(target.dtype)).cast("B")
    for start in range(0, len(data), len(block)):
        piece = data[start : start + len(block)]
        piece[:] = block[: len(piece)]


def _block(dtype: str) -> Any:
    import random

    # Always the same numbers, so that measurements are comparable.
    source = random.Random(0)
    code = dtypes.format_of_name(dtype)
    if code is None or code not in "fdhHiIqQ":
        return bytes(source.randrange(2) for _ in range(BLOCK))
    draw = source.uniform if code in "fd" else source.randint
    return array.array(code, (draw(1, 10) for _ in range(BLOCK)))
