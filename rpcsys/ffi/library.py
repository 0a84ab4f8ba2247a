"""Finds and loads libtvm_ffi and libtvm_runtime, and holds references to their objects.

libtvm_ffi is loaded globally, because libraries that TVM builds do not name it as a dependency and bind its functions
from the process. It suffices to call functions. libtvm_runtime adds TVM's loaders, its virtual machine and its RPC.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import abi

_ENDING = ".dylib" if sys.platform == "darwin" else ".so"
FFI = "libtvm_ffi" + _ENDING
RUNTIME = "libtvm_runtime" + _ENDING
EXTRA = "libtvm_runtime_extra" + _ENDING  # optional parts of TVM's runtime, beside it in its wheel

_pointer = ctypes.c_void_p
_bytes = ctypes.POINTER(abi.ByteArray)
_any = ctypes.POINTER(abi.Any)
_out = ctypes.POINTER(ctypes.c_void_p)

#: Path -> device and inode of each file that was opened by it -> its number in that order.
_files: Dict[str, Dict[Tuple[int, int], int]] = {}

#: Functions of libtvm_ffi that are used here -> their arguments. Each returns 0, or sets an error.
_FUNCTIONS: Dict[str, Tuple[Any, ...]] = {
    "TVMFFIObjectIncRef": (_pointer,),
    "TVMFFIObjectDecRef": (_pointer,),
    "TVMFFIFunctionCreate": (_pointer, abi.SafeCall, abi.Deleter, _out),
    "TVMFFIFunctionGetGlobal": (_bytes, _out),
    "TVMFFIFunctionSetGlobal": (_bytes, _pointer, ctypes.c_int),
    "TVMFFIFunctionCall": (_pointer, _pointer, ctypes.c_int32, _any),
    "TVMFFIAnyViewToOwnedAny": (_any, _any),
    "TVMFFIStringFromByteArray": (_bytes, _any),
    "TVMFFIErrorCreate": (_bytes, _bytes, _bytes, _out),
    "TVMFFITensorFromDLPack": (_pointer, ctypes.c_int32, ctypes.c_int32, _out),
    "TVMFFITensorFromDLPackVersioned": (_pointer, ctypes.c_int32, ctypes.c_int32, _out),
    "TVMFFITensorToDLPack": (_pointer, _out),
    "TVMFFITensorToDLPackVersioned": (_pointer, _out),
}
#: Functions that return nothing and cannot fail.
_SETTERS: Dict[str, Tuple[Any, ...]] = {"TVMFFIErrorMoveFromRaised": (_out,), "TVMFFIErrorSetRaised": (_pointer,)}


class Paths(NamedTuple):
    """The paths of the libraries; ``runtime`` is None if there is only libtvm_ffi."""

    ffi: str
    runtime: Optional[str]


class _Loaded:
    """The libraries that this process has loaded, and the folder to load them from."""

    folder: Optional[str] = None
    api: Any = None
    runtime = False
    beside: Tuple[str, ...] = ()  # what is still to be loaded once libtvm_runtime is
    # The paths found: neither a call nor the opening of a session should search again.
    absent = False
    runtime_found: Optional[bool] = None


def use(folder: Optional[str]) -> None:
    """Search for the libraries in ``folder`` only; None restores the usual folders."""
    _Loaded.folder, _Loaded.absent, _Loaded.runtime_found = folder, False, None


def find(folder: Optional[str] = None) -> Optional[Paths]:
    """The paths of the libraries: in ``folder``, else `use`'s folder, else the usual ones; None if not found."""
    chosen = folder or _Loaded.folder
    places = [chosen] if chosen else list(_places())
    ffi = _first(places, FFI)
    return Paths(ffi, _first(places, RUNTIME)) if ffi else None


def api() -> Any:
    """libtvm_ffi with its functions declared. Raises `NativeError` if it is missing or cannot be loaded."""
    if _Loaded.api is None:
        paths = find()
        if paths is None:
            raise _missing(FFI, "apache-tvm-ffi")
        _Loaded.api = _declare(_open(paths.ffi))
    return _Loaded.api


def present() -> bool:
    """Whether libtvm_ffi is loaded or can be found."""
    if _Loaded.api is None and not _Loaded.absent:
        _Loaded.absent = find() is None
    return not _Loaded.absent


def load_runtime() -> None:
    """Load libtvm_runtime and the libraries beside it. Raises `NativeError` if it is missing or cannot be loaded."""
    if not _Loaded.runtime:
        api()
        paths = find()
        if paths is None or paths.runtime is None:
            raise _missing(RUNTIME, "apache-tvm")
        _open(paths.runtime)
        extra = os.path.join(os.path.dirname(paths.runtime), EXTRA)
        if os.path.isfile(extra):
            _open(extra)
        _Loaded.runtime = True
    load_beside()


def beside(paths: Sequence[str]) -> None:
    """Have these libraries, such as the runtimes of other devices, loaded with libtvm_runtime."""
    _Loaded.beside = tuple(paths)


def load_beside() -> None:
    """Load what `beside` has named; libtvm_runtime is loaded. Raises `NativeError`, again at the next use of it."""
    while _Loaded.beside:
        _open(_Loaded.beside[0])
        _Loaded.beside = _Loaded.beside[1:]


def has_runtime() -> bool:
    """Whether libtvm_runtime is loaded or can be found."""
    if _Loaded.runtime_found is None:
        paths = find()
        _Loaded.runtime_found = paths is not None and paths.runtime is not None
    return _Loaded.runtime or _Loaded.runtime_found


def _missing(name: str, package: str) -> NativeError:
    text = f"there is no {name} on this device; install {package}, or start the server with --tvm-library DIR"
    return NativeError(text, kind="LibraryMissing")


def _places() -> Iterator[str]:
    """The packages tvm_ffi and tvm, then the folder that holds rpcsys, and its ``lib``. Imports nothing."""
    from importlib.util import find_spec

    for package in ("tvm_ffi", "tvm"):
        try:
            spec = find_spec(package)
        except (ImportError, ValueError):
            continue
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield os.path.join(folder, "lib")
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    yield own
    yield os.path.join(own, "lib")


def _first(places: List[str], name: str) -> Optional[str]:
    paths = (os.path.abspath(os.path.join(place, name)) for place in places)
    return next((path for path in paths if os.path.isfile(path)), None)


def to_open(path: str) -> str:
    """``path`` as dlopen takes it for the file that is there now.

    dlopen looks for a name without a folder in the system's folders only, and takes a path that it has opened for the
    same library. So a file that has replaced another one gets a spelling of its own: its number among the files of this
    path, in binary, as ``./`` and ``/``.
    """
    folder, name = os.path.split(path)
    folder = folder or os.curdir
    try:
        about = os.stat(path)
    except OSError:  # dlopen reports it
        return os.path.join(folder, name)
    files = _files.setdefault(path, {})
    number = files.setdefault((about.st_dev, about.st_ino), len(files))
    spelling = "".join("./" if digit == "1" else "/" for digit in f"{number:b}") if number else ""
    return os.path.join(folder, spelling + name)


def _open(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NativeError(f"{path} does not load: {error}", kind="LibraryBroken") from None


def _declare(lib: ctypes.CDLL) -> Any:
    """Declare the types of ``lib``'s functions. Raises `NativeError` if it lacks one."""
    try:
        for name, arguments in _FUNCTIONS.items():
            getattr(lib, name).argtypes = arguments
        for name, arguments in _SETTERS.items():
            getattr(lib, name).argtypes = arguments
            getattr(lib, name).restype = None
        lib.TVMFFIGetTypeInfo.argtypes = (ctypes.c_int32,)
        lib.TVMFFIGetTypeInfo.restype = ctypes.POINTER(abi.TypeInfo)
    except AttributeError as error:
        raise NativeError(f"{lib._name} is too old or too new for rpcsys: {error}", kind="LibraryBroken") from None
    return lib


class Object:
    """A reference to the native object at ``handle``, taken over from its maker; released when this is deleted."""

    __slots__ = ("__weakref__", "_release", "handle")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        # Stored here: when the interpreter ends, the module may be deleted before its objects.
        self._release = api().TVMFFIObjectDecRef

    def __del__(self) -> None:
        if self.handle:
            self._release(self.handle)

    def __repr__(self) -> str:
        return f"<native {type(self).__name__.lower()} of type {self.type_index} at {self.handle:#x}>"

    @property
    def type_index(self) -> int:
        """The object's type: one of `abi`'s, or a number that this process has registered."""
        return int(abi.Header.from_address(self.handle).type)


def strings(*texts: str) -> List[Any]:
    """References to ByteArrays of these texts, which they keep alive: arguments for one call."""
    return [ctypes.byref(abi.borrowed(text.encode("utf-8", "surrogateescape"))) for text in texts]
