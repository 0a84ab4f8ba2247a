"""libtvm_ffi and libtvm_runtime: found, loaded, and references to their objects.

libtvm_ffi is loaded globally: libraries that TVM builds name no dependency, and bind what they need of it from what the
process has. It is enough to call functions; libtvm_runtime adds TVM's loaders, its virtual machine and its RPC.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import abi

_ENDING = ".dylib" if sys.platform == "darwin" else ".so"
FFI = "libtvm_ffi" + _ENDING
RUNTIME = "libtvm_runtime" + _ENDING
EXTRA = "libtvm_runtime_extra" + _ENDING  # parts of TVM's runtime that stand beside it in its wheel, and are optional

_pointer = ctypes.c_void_p
_bytes = ctypes.POINTER(abi.ByteArray)
_any = ctypes.POINTER(abi.Any)
_out = ctypes.POINTER(ctypes.c_void_p)

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
    """Where the libraries are; ``runtime`` is None where there is libtvm_ffi alone."""

    ffi: str
    runtime: Optional[str]


class _Loaded:
    """What this process has loaded, and from where it would."""

    folder: Optional[str] = None
    api: Any = None
    runtime = False
    # What was found: a call, or a session's opening, must not look again each time.
    absent = False
    runtime_found: Optional[bool] = None


def use(folder: Optional[str]) -> None:
    """Have the libraries looked for in ``folder`` alone; None goes back to the usual places."""
    _Loaded.folder, _Loaded.absent, _Loaded.runtime_found = folder, False, None


def find(folder: Optional[str] = None) -> Optional[Paths]:
    """Where the libraries are: in ``folder``, else where `use` said, else in the usual places; None if nowhere."""
    chosen = folder or _Loaded.folder
    places = [chosen] if chosen else list(_places())
    ffi = _first(places, FFI)
    return Paths(ffi, _first(places, RUNTIME)) if ffi else None


def api() -> Any:
    """libtvm_ffi, its functions declared. Raises `NativeError` where it is not, or does not load."""
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
    """Load libtvm_runtime, and what stands beside it. Raises `NativeError` where it is not, or does not load."""
    if _Loaded.runtime:
        return
    api()
    paths = find()
    if paths is None or paths.runtime is None:
        raise _missing(RUNTIME, "apache-tvm")
    _open(paths.runtime)
    extra = os.path.join(os.path.dirname(paths.runtime), EXTRA)
    if os.path.isfile(extra):
        _open(extra)
    _Loaded.runtime = True


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
    """The installed packages tvm_ffi and tvm, then the folder that rpcsys is in, and its ``lib``. Imports nothing."""
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


def _open(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NativeError(f"{path} does not load: {error}", kind="LibraryBroken") from None


def _declare(lib: ctypes.CDLL) -> Any:
    """``lib`` with the types of its functions. Raises `NativeError` when it lacks one."""
    try:
        for name, arguments in _FUNCTIONS.items():
            getattr(lib, name).argtypes = arguments
        for name, arguments in _SETTERS.items():
            getattr(lib, name).argtypes = arguments
            getattr(lib, name).restype = None
    except AttributeError as error:
        raise NativeError(f"{lib._name} is too old or too new for rpcsys: {error}", kind="LibraryBroken") from None
    return lib


class Object:
    """One reference to the native object at ``handle``, which its maker hands over; given back when this goes."""

    __slots__ = ("__weakref__", "_release", "handle")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        # Kept at hand: at the interpreter's end the module may be gone before its objects.
        self._release = api().TVMFFIObjectDecRef

    def __del__(self) -> None:
        if self.handle:
            self._release(self.handle)

    def __repr__(self) -> str:
        return f"<native {type(self).__name__.lower()} of type {self.type_index} at {self.handle:#x}>"

    @property
    def type_index(self) -> int:
        """What kind of object it is: one of `abi`'s, or a number that this process gave out."""
        return int(abi.Header.from_address(self.handle).type)


def strings(*texts: str) -> List[Any]:
    """References to ByteArrays of these texts, which keep them: arguments for one call."""
    return [ctypes.byref(abi.borrowed(text.encode("utf-8", "surrogateescape"))) for text in texts]
