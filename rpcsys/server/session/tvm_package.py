"""The ``tvm`` package without its Python and its compiler: its runtime, and a stand-in for each function of the others.

TVM's Python is 50 MB of objects and its compiler 7, whose page tables each fork copies and each exit takes down.
Sessions hardly need them: of the 2,080 functions of apache-tvm 0.27 they register 1,786, to compile and for TVM's own
tests. A stand-in imports the package when it is called for the first time, in its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
from typing import Any, Callable, List, NamedTuple, NoReturn, Optional

from rpcsys.errors import NativeError
from rpcsys.ffi import calls, library
from rpcsys.server.sandbox import processes

MODULE = "tvm.rpc.server"
#: How the names of the package's libraries begin, and of those that run what was compiled.
_LIBRARIES, _RUNTIMES = "libtvm_", "libtvm_runtime"


class Contents(NamedTuple):
    """What importing the package brings: the paths of its ``libraries``, and all registered ``functions``."""

    libraries: List[str]
    functions: List[str]


class _Absent:
    """The functions that have stand-ins in this process; None while it does not do without Python."""

    names: Optional[List[str]] = None


def ready() -> bool:
    """Whether `load` has loaded the runtime here."""
    return _Absent.names is not None


def load() -> bool:
    """Load the package's runtime and register the stand-ins; False if its Python has to be imported.

    A copy of this process imports it once, to see what that brings. Only for a process with one thread.
    """
    paths = library.find()
    if paths is None or paths.runtime is None:
        return False
    contents = _survey()
    if not {os.path.realpath(path) for path in paths if path}.issubset(contents.libraries):
        return False  # the import fails, or brings others than those that are found here
    try:
        library.load_runtime()
        for path in contents.libraries:
            if os.path.basename(path).startswith(_RUNTIMES):
                ctypes.CDLL(path)
        _Absent.names = sorted(set(contents.functions).difference(_registered()))
        _stand_in(_Absent.names)
    except (NativeError, OSError):
        return False
    return True


def _survey() -> Contents:
    """What the package contains, by importing it in a copy of this process; nothing if that fails."""
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _report(writing, parent)
    os.close(writing)
    with open(reading, "rb") as answer:
        found = answer.read()
    os.waitpid(pid, 0)
    return Contents(**json.loads(found)) if found else Contents([], [])


def _report(writing: int, parent: int) -> NoReturn:
    with contextlib.suppress(Exception):  # the parent imports it, too, then, and reports why that fails
        processes.die_with_parent(parent)
        importlib.import_module(MODULE)
        with open(writing, "w") as answer:
            json.dump(Contents(_loaded(), _registered())._asdict(), answer)
    os._exit(0)


def _loaded() -> List[str]:
    """The paths of the package's libraries that this process has loaded, in the order of their addresses."""
    with open("/proc/self/maps") as maps:
        fields = [line.split(maxsplit=5) for line in maps]
    paths = [last[5].rstrip("\n") for last in fields if len(last) > 5]
    return [path for path in dict.fromkeys(paths) if os.path.basename(path).startswith(_LIBRARIES)]


def _registered() -> List[str]:
    """The names of all functions that are registered in this process."""
    get = calls.get_global("ffi.FunctionListGlobalNamesFunctor")()
    return [get(index) for index in range(get(-1))]


def _stand_in(names: List[str]) -> None:
    for name in names:
        calls.register(name, _importing(name))


def _importing(name: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        _import()
        return calls.get_global(name)(*arguments)

    return call


def _import() -> None:
    """Import TVM's Python, which registers its functions and the compiler's in the place of their stand-ins."""
    names, _Absent.names = _Absent.names or [], []
    for name in names:
        calls.get_global("ffi.FunctionRemoveGlobal")(name)
    try:
        importlib.import_module(MODULE)
    except BaseException:
        _Absent.names = [name for name in names if calls.find_global(name) is None]
        _stand_in(_Absent.names)
        raise
