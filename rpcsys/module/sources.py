"""Native functions as source: C and C++ files, object files and archives, compiled and linked here."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from typing import List, Optional, Sequence, Set, Union

from rpcsys.errors import UsageError
from rpcsys.module import toolchain as toolchains
from rpcsys.module.layout import LIBRARY, Buffer
from rpcsys.module.module import Function, Module

_C_PLUS_PLUS = (".cc", ".cpp", ".cxx")
_COMPILED = (".c", *_C_PLUS_PLUS)  # these are compiled; other files go to the linker
_FILES = (*_COMPILED, ".o", ".a")
#: A function by its symbol, or by tvm-ffi's macro for C++. A further underscore marks symbols that are not functions.
_EXPORTED = re.compile(rb"(?:__tvm_ffi_|TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*)([A-Za-z0-9]\w*)")
#: Position-independent code; no build id, and only the names that can be looked up, since others may contain paths.
_COMPILE_FLAGS = ("-O2", "-fPIC")
_LINK_FLAGS = ("-shared", "-Wl,--build-id=none", "-Wl,-s", "-Wl,-z,noexecstack")
#: Bytes that are written at once. So what is read from a mapped file, such as a loaded model's weights, is copied from
#: the CPU's cache: measured on 500 MB, 0.12 s against 0.29 in one go (the kernel's own copy of the file: 0.13).
_WRITE_BYTES = 1 << 20
_MAX_MESSAGE = 600  # characters of a compiler's message that an error includes


class Sources(Module):
    """Functions of the TVM-FFI ABI as source: every symbol ``__tvm_ffi_NAME`` is a function ``NAME``.

    When a tree is exported they become the library's own code (kind ``_lib``). Before that, the first use of any of
    them compiles all for this machine.

    ``files``: paths of ``.c``, ``.cc``, ``.cpp``, ``.cxx``, ``.o`` and ``.a`` files; ``flags``: further arguments of
    the compiler and linker (``-O3``, ``-lm``).
    """

    def __init__(self, files: Sequence[Union[str, os.PathLike[str]]], flags: Sequence[str] = ()) -> None:
        """Raises `UsageError` for a file that does not exist or has an unknown ending."""
        super().__init__(LIBRARY)
        self.files = [os.path.abspath(os.fspath(file)) for file in files]
        self.flags = list(flags)
        self._library: Optional[Module] = None
        self._names: Optional[List[str]] = None
        if not self.files:
            raise UsageError("native functions need at least one file to be compiled or linked from")
        for file in self.files:
            if not file.endswith(_FILES):
                raise UsageError(f"{file} is neither source nor object file; known are " + ", ".join(_FILES))
            if not os.path.isfile(file):
                raise UsageError(f"{file}: there is no such file")

    def names(self) -> List[str]:
        """The functions' names, read from the files, for any target."""
        if self._names is None:
            found: Set[str] = set()
            for file in self.files:
                with open(file, "rb") as content:
                    found.update(match[1].decode() for match in _EXPORTED.finditer(content.read()))
            self._names = sorted(found)
        return self._names

    def own(self, name: str) -> Optional[Function]:
        if self._library is None:
            from rpcsys.module.kinds import native

            with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder:
                path = os.path.join(folder, "functions.so")
                link([self], path)
                self._library = native.load(path, os.path.basename(self.files[0]))
        return self._library.own(name)

    def release(self) -> None:
        super().release()
        self._library = None


def _compiler(toolchain: Optional[str], cxx: bool) -> List[str]:
    """The first words of the C or C++ compiler's command: the toolchain's, else ``$CC`` or ``$CXX``, else the usual."""
    if toolchain is not None:
        return toolchains.find(toolchain).command(cxx=cxx)
    variable, names, package = ("CXX", ("c++", "g++"), "g++") if cxx else ("CC", ("cc", "gcc"), "gcc")
    for command in (os.environ.get(variable, ""), *names):
        words = shlex.split(command)  # CC="ccache gcc"
        found = shutil.which(words[0]) if words else None
        if found:
            return [found, *words[1:]]
    lacking = f"there is no {'C++' if cxx else 'C'} compiler here, and the model has native code to be linked"
    raise UsageError(f"{lacking}; type: sudo apt-get install {package}")


def link(
    sources: Sequence[Sources], path: str, modules: Sequence[Buffer] = (), toolchain: Optional[str] = None
) -> None:
    """Link code, plus the object file ``modules`` if there is one, into a library. Raises `UsageError`."""
    files = [file for module in sources for file in module.files]
    flags = [flag for module in sources for flag in module.flags]
    cxx = any(file.endswith(_C_PLUS_PLUS) for file in files)
    # Temporary files go beside the result: another file system may be too small.
    with tempfile.TemporaryDirectory(prefix=".rpcsys-", dir=os.path.dirname(path) or None) as folder:
        objects = [_compiled(toolchain, file, flags, folder, number) for number, file in enumerate(files)]
        if modules:
            objects.append(os.path.join(folder, "modules.o"))
            write(objects[-1], modules)
        _run([*_compiler(toolchain, cxx), *_LINK_FLAGS, "-o", path, *objects, *flags], "link", files[0])


def write(path: str, pieces: Sequence[Buffer]) -> None:
    """Write ``pieces`` to a file. Raises OSError."""
    with open(path, "wb", buffering=0) as file:
        for piece in pieces:
            left = memoryview(piece).cast("B")
            while left.nbytes:
                left = left[file.write(left[:_WRITE_BYTES]) :]


def _compiled(toolchain: Optional[str], file: str, flags: Sequence[str], folder: str, number: int) -> str:
    """The object file of one source; ``file`` itself if it is not a source."""
    if not file.endswith(_COMPILED):
        return file
    made = os.path.join(folder, f"{number}.o")
    # Compilers put into code, unasked: the source's path, and names made at random.
    same = [f"-ffile-prefix-map={os.path.dirname(file)}=.", f"-frandom-seed={number}"]
    command = [*_compiler(toolchain, file.endswith(_C_PLUS_PLUS)), *_COMPILE_FLAGS, *_headers(), *same, *flags]
    _run([*command, "-c", "-o", made, file], "compile", file)
    return made


def _headers() -> List[str]:
    """The folder of the TVM-FFI ABI's headers, if its package is installed."""
    spec = find_spec("tvm_ffi")
    folders = [os.path.join(place, "include") for place in (spec.submodule_search_locations or ())] if spec else []
    return [f"-I{folder}" for folder in folders if os.path.isdir(folder)]


def _run(command: Sequence[str], verb: str, file: str) -> None:
    environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("collect2")]
        lines = [line for line in lines if "error:" in line] or lines
        said = " ".join(" ".join(lines[:3]).split())[:_MAX_MESSAGE] or f"status {done.returncode}"
        raise UsageError(f"{os.path.basename(command[0])} could not {verb} {os.path.basename(file)}: {said}")
