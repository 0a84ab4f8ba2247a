"""What a canary runs: the built-in work, which needs the standard library alone, or one call of a model.

The built-in work has a part for the processor (a loop of Python), one for memory (copies larger than most caches) and
one for both (compression). Change nothing in it without a new `VERSION`: its times are compared over months.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import Any, Callable, Dict, List, Mapping, Tuple

from rpcsys.errors import ModelError
from rpcsys.module import loading
from rpcsys.module.module import Module, process, walk
from rpcsys.server.capabilities import installed, versions

VERSION = 1
STEPS = 60_000  # of the loop: some 3 ms on a desk's processor, 60 ms on a small board
COPIED = 4 << 20  # bytes
COMPRESSED = 64 << 10
CALL = "canary"  # the function of a library without a ``main`` of known inputs
_SEED = 1

#: One run of the work, and the name under which its times are compared.
Work = Tuple[Callable[[], Any], str]


def builtin() -> Work:
    """The built-in work. Its name has what its speed depends on beside the board: Python, and the library of zlib."""
    source, target = memoryview(bytearray(COPIED)), memoryview(bytearray(COPIED))
    text = bytes((number * 2654435761 >> 13) & 255 for number in range(COMPRESSED))
    name = f"builtin/{VERSION} {sys.implementation.name}-{platform.python_version()}"
    compress: Callable[[bytes, int], Any] = lambda data, level: None  # noqa: E731 - a board may lack zlib
    if installed("zlib"):
        import zlib

        compress, name = zlib.compress, f"{name} zlib-{zlib.ZLIB_RUNTIME_VERSION}"

    def run() -> None:
        _loop(STEPS)
        target[:] = source
        compress(text, 6)

    return run, name


def _loop(steps: int) -> int:
    """Numbers of a linear congruential generator: integers that Python's loop cannot skip."""
    value = 1
    for _ in range(steps):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    return value


def of_file(path: str) -> Work:
    """A call of the model in a file, with random inputs. Raises `ModelError`: it cannot be loaded, or called so.

    It runs in one thread, so that its time does not depend on how many processors are free.
    """
    process.threads = 1
    module = loading.load_file(path, os.path.basename(path))
    found = versions()
    parts = [f"{part}-{found[part]}" for part in ("onnxruntime", "tvm_ffi") if part in found]
    return _call_of(module, os.path.basename(path)), " ".join(
        [f"{os.path.basename(path)[:64]} {_digest(path)}", *parts]
    )


def _call_of(module: Module, name: str) -> Callable[[], Any]:
    main = next((part for part in walk(module) if part.own("main") is not None and part.inputs), None)
    if main is not None:
        inputs = _random(main.inputs)
        return lambda: main.run_main(inputs)
    if CALL in module.functions:
        return module.function(CALL)
    how = f"a canary is a model whose inputs are known (.onnx), or a library with a function {CALL!r} of no arguments"
    raise ModelError(f"{name} has the functions {', '.join(module.functions[:8]) or 'none'}: {how}")


def _random(inputs: List[Dict[str, Any]]) -> Mapping[str, Any]:
    """An array for each input: numbers in [0, 1), the same each time; a free extent is 1."""
    import numpy as np

    made = np.random.default_rng(_SEED)
    found = {}
    for value in inputs:
        shape = [extent if type(extent) is int and extent > 0 else 1 for extent in value["shape"]]
        found[value["name"]] = made.random(shape).astype(value["dtype"])
    return found


def _digest(path: str) -> str:
    import hashlib  # with OpenSSL, which the built-in work does without

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()[:12]
