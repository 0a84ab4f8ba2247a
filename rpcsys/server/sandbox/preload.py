"""Imports and loads what sessions need before they begin: once in a zygote, or in each fresh interpreter."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import socket
import sys
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import library
from rpcsys.server import capabilities
from rpcsys.server.sandbox import messages, processes

#: Variables that libraries read when they are loaded.
THREAD_COUNTS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
#: The modules that every session uses.
OWN = ("rpcsys.server.session.session", "rpcsys.server.session.tvm_session")
TVM_PACKAGE = "rpcsys.server.session.tvm_package"
#: The module that encrypted sessions use, too.
SECURE = "rpcsys.server.session.secure_opening"
#: For a package to preload, the module that sessions use.
TVM = "tvm.rpc.server"
PACKAGES = {"onnxruntime": "rpcsys.module.kinds.onnx", "tvm": TVM}
#: How the names of the libraries begin whose loading touches many pages.
LIBRARIES = ("libtvm_", "libstdc++")
REHEARSALS = 10  # Python 3.11 adapts code in its eighth run
_MADV_DONTNEED = 4


def own(settings: dict[str, Any]) -> None:
    """Import the modules that every session uses; none of them is large."""
    library.use(settings["tvm_library"])
    for name in (*OWN, SECURE) if settings["secure"] else OWN:
        importlib.import_module(name)


def capable(settings: dict[str, Any]) -> None:
    """After the imports, find this device's capabilities once for all sessions."""
    importlib.import_module("rpcsys.server.session.hello").prepare(*settings["able"])


def ahead(settings: dict[str, Any]) -> None:
    """Do once for all sessions what each would do, on pages of its own, when it opens.

    A rehearsal fills caches, and Python 3.11 adapts code in its first runs: it writes to the code. A copy of a process
    that has done this does nothing.
    """
    if OWN[0] in sys.modules:
        return
    own(settings)
    session = importlib.import_module(OWN[0])
    capabilities.warm()
    for _ in range(REHEARSALS):
        session.rehearse()
    rehearse_opening(settings)


def rehearse_opening(settings: dict[str, Any]) -> None:
    """Open a tunnel, where sessions are encrypted."""
    if settings["secure"]:
        importlib.import_module(SECURE).rehearse()


def everything(settings: dict[str, Any], supervisor: socket.socket) -> None:
    """Import and load what sessions need, one thread each; report imports. Raises ImportError, with the flag's name."""
    with _one_thread():
        own(settings)
        if settings["tvm"] == "ctypes":
            _load_runtime()
        for flag, names in (("--preload", settings["preload"]), ("--import", settings["imports"])):
            for name in names:
                _import(name, f"{flag} {name}", supervisor)
        if settings.get("of_tvm"):
            _import(TVM, "--tvm python", supervisor)
    processes.exit_without_destructors()


def tvm_for_children(settings: dict[str, Any], supervisor: socket.socket, child: int) -> None:
    """Load TVM for this process's later children, the first of which is ``child``. Raises ImportError.

    Without its Python, where that is possible.
    """
    with _one_thread():
        _load("--tvm python", supervisor, lambda: _tvm_for_children(settings), child=child)
    processes.exit_without_destructors()


def _tvm_for_children(settings: dict[str, Any]) -> None:
    library.use(settings["tvm_library"])
    package = importlib.import_module(TVM_PACKAGE)
    if TVM not in sys.modules and package.load():
        runtime = importlib.import_module("rpcsys.server.session.tvm_ctypes").library_runtime()
        importlib.import_module(OWN[1]).prepare(runtime)
        release_pages(LIBRARIES)
    else:
        own(settings)
        importlib.import_module(TVM)


def has_hooks() -> bool:
    """Whether modules of a fresh zygote for TVM's clients have something to do after a fork.

    Without TVM's Python only threading and logging have hooks there, which do nothing where one thread runs.
    """
    return not importlib.import_module(TVM_PACKAGE).ready() or "random" in sys.modules


def _import(name: str, what: str, supervisor: socket.socket) -> None:
    _load(what, supervisor, lambda: importlib.import_module(PACKAGES.get(name, name)))


def _load(what: str, supervisor: socket.socket, load: Callable[[], object], **fields: int) -> None:
    messages.send_json(supervisor, importing=what, **fields)
    try:
        load()
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError)
        how = "; install it for this Python, or add its folder to PYTHONPATH" if missing else ""
        raise ImportError(f"{what}: {type(error).__name__}: {error}{how}") from error


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Libraries that are loaded meanwhile use one thread each."""
    before = {name: os.environ.get(name) for name in THREAD_COUNTS}
    os.environ.update(dict.fromkeys(THREAD_COUNTS, "1"))
    try:
        yield
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
    release_pages(LIBRARIES)


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
