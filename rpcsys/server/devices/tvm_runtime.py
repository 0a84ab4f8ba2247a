"""The kinds of devices that TVM's runtime has in a session: with the libraries that a server loads into it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import List, Optional

from rpcsys.ffi import calls, library
from rpcsys.wire.device_names import KINDS


def find(folder: Optional[str], libraries: List[str], kinds: List[str]) -> List[str]:
    """Those of ``kinds`` that are known. Raises OSError and `NativeError`."""
    library.use(folder)
    library.load_runtime()
    paths = library.find()
    beside = os.path.dirname(paths.runtime or "") if paths is not None else ""
    for kind in kinds:  # TVM's wheel has libtvm_runtime_cuda.so
        with contextlib.suppress(OSError):
            ctypes.CDLL(os.path.join(beside, f"libtvm_runtime_{kind}.so"), ctypes.RTLD_GLOBAL)
    for path in libraries:
        ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    return [kind for kind in kinds if KINDS[kind] and calls.find_global("device_api." + kind) is not None]
