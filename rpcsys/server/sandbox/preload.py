"""Imports and loads what sessions need before they begin: once in a zygote, or in each fresh interpreter."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import socket
from typing import Any, Iterator, Optional, Sequence, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import library
from rpcsys.server.sandbox import messages, processes

#: Variables that libraries read when they are loaded.
THREAD_COUNTS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
#: The modules that every session uses.
OWN = ("rpcsys.server.session.session", "rpcsys.server.session.tvm_session")
#: For a package to preload, the module that sessions use.
PACKAGES = {"onnxruntime": "rpcsys.module.kinds.onnx", "tvm": "tvm.rpc.server"}
_MADV_DONTNEED = 4


def own(settings: dict[str, Any]) -> None:
    """Import the modules that every session uses; none of them is large."""
    library.use(settings["tvm_library"])
    for name in OWN:
        importlib.import_module(name)


def everything(settings: dict[str, Any], supervisor: socket.socket) -> None:
    """Import and load what sessions need, one thread each; report imports. Raises ImportError, with the flag's name."""
    before = {name: os.environ.get(name) for name in THREAD_COUNTS}
    os.environ.update(dict.fromkeys(THREAD_COUNTS, "1"))
    try:
        own(settings)
        if settings["tvm"] == "ctypes":
            _load_runtime()
        for flag, names in (("--preload", settings["preload"]), ("--import", settings["imports"])):
            for name in names:
                messages.send_json(supervisor, importing=f"{flag} {name}")
                try:
                    importlib.import_module(PACKAGES.get(name, name))
                except Exception as error:
                    missing = isinstance(error, ModuleNotFoundError)
                    how = "; install it for this Python, or add its folder to PYTHONPATH" if missing else ""
                    raise ImportError(f"{flag} {name}: {type(error).__name__}: {error}{how}") from error
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _load_runtime() -> None:
    """Load TVM's libraries, which start no thread until a session runs something."""
    importlib.import_module("rpcsys.server.session.tvm_ctypes")
    try:
        library.load_runtime()
    except NativeError as error:
        raise ImportError(f"--tvm ctypes: {error}") from error
    release_pages(("libtvm_", "libstdc++"))


def release_pages(libraries: Sequence[str]) -> int:
    """Release the clean pages of libraries whose file names begin so; return the bytes of these mappings.

    Relocating libtvm_runtime reads 5.8 MB of symbol tables, which then count for this process. Only unchanged read-only
    mappings are released: the system reads them from the file again when they are used.
    """
    released = 0
    for start, end in list(_clean_mappings(tuple(libraries))):
        place, size = ctypes.c_void_p(start), ctypes.c_size_t(end - start)
        if processes.LIBC.madvise(place, size, _MADV_DONTNEED) == 0:
            released += end - start
    return released


def _clean_mappings(libraries: Tuple[str, ...]) -> Iterator[Tuple[int, int]]:
    """Start and end of the libraries' unchanged read-only mappings; none if the system does not show them.

    qemu-user translates addresses in `maps` alone: `smaps` has those of the host, where another page may lie.
    """
    found: Optional[Tuple[int, int]] = None
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps, open("/proc/self/smaps") as detailed:
        own_addresses = set(maps)
        for line in detailed:
            fields = line.split()
            if fields[0] in ("Private_Dirty:", "Shared_Dirty:") and fields[1] != "0":
                found = None
            elif fields[0] == "VmFlags:" and found is not None:  # the last line of a mapping
                yield found
            elif not fields[0].endswith(":"):
                start, _, end = fields[0].partition("-")
                ours = len(fields) == 6 and os.path.basename(fields[5]).startswith(libraries)
                ours = ours and fields[1][1] == "-" and line in own_addresses
                found = (int(start, 16), int(end, 16)) if ours else None
