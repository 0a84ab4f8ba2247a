"""From a tree of modules to one shared library, on a desk.

A tree without native code needs no compiler: the ELF file is written as it is, for any target. With native code the
target's compiler links it with an object file that is written likewise, so that no weight ever passes through source.
Either way the weights lie on pages, for loading to map; and the same tree gives the same bytes: no path, no time and no
build id gets into the file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from typing import Iterator, List, NamedTuple, Optional, Sequence, Union

from rpcsys.errors import UsageError
from rpcsys.ffi.module import LIBRARY_BIN, LIBRARY_CTX
from rpcsys.module import elf, elfwriter, names, tree
from rpcsys.module import toolchain as toolchains
from rpcsys.module.layout import LIBRARY, Buffer
from rpcsys.module.module import Module, walk
from rpcsys.module.sources import C_PLUS_PLUS, COMPILED, Sources

Path = Union[str, os.PathLike[str]]

#: Code at any address; no build id, and no names but those that can be looked up, which may tell paths.
_COMPILE = ("-O2", "-fPIC")
_LINK = ("-shared", "-Wl,--build-id=none", "-Wl,-s", "-Wl,-z,noexecstack")
#: Bytes that are written at once. What is mapped from a file, as a loaded model's weights are, is copied from the processor's
#: cache then: measured on 500 MB, 0.12 s against 0.29 in one go (the kernel's own copy of the file: 0.13).
_AT_ONCE = 1 << 20
#: Two threads may write to the same place: each has a name of its own until it is done.
_numbers = itertools.count()
#: Of what a compiler says, as much as a person reads.
_SAID = 600


class _Target(NamedTuple):
    """What is built for; ``toolchain`` None stands for this machine and its own compiler."""

    machine: str
    bits: int
    toolchain: Optional[str]

    def command(self, cxx: bool) -> List[str]:
        """How a command line of the compiler begins. Raises `UsageError` where there is none."""
        if self.toolchain is not None:
            return toolchains.find(self.toolchain).command(cxx=cxx)
        variable, names, package = ("CXX", ("c++", "g++"), "g++") if cxx else ("CC", ("cc", "gcc"), "gcc")
        for command in (os.environ.get(variable, ""), *names):
            words = shlex.split(command)  # CC="ccache gcc"
            found = shutil.which(words[0]) if words else None
            if found:
                return [found, *words[1:]]
        raise UsageError(
            f"there is no {'C++' if cxx else 'C'} compiler here, and the model has native code to be linked; "
            f"type: sudo apt-get install {package}"
        )


def export_library(module: Module, path: Path, toolchain: Optional[Path] = None, *, strip_names: bool = False) -> None:
    """Write ``module``, with all that it imports, as one shared library.

    `load_module` gives the tree back, and so does TVM's once ``rpcsys.tvm`` is imported. The file at ``path`` appears
    whole or not at all. ``toolchain`` says what it is for: a name (``aarch64-linux-gnu``) or the path of a CMake
    toolchain file; None is this machine.

    ``strip_names`` leaves no name of an operator or a tensor that can be read in the file, but those of the root's inputs and
    outputs (`rpcsys.module.names`); functions keep theirs, and so does what compiled code says of itself.

    Raises `UsageError` for a module that cannot be saved, an unknown target, a compiler that is not here, code that does
    not compile, and a place that cannot be written to.
    """
    target = _target(toolchain)
    machine = elfwriter.MACHINES.get((target.machine, target.bits))
    if machine is None:
        raise UsageError(
            f"no libraries are written for {target.machine} with {target.bits} bits; known are "
            + ", ".join(f"{name} ({bits})" for name, bits in elfwriter.MACHINES)
        )
    if strip_names:
        module = names.replaced(module)
    sources = list(_native(module))
    pieces = tree.save(module)
    size = sum(memoryview(piece).nbytes for piece in pieces)
    make = elfwriter.object_file if sources else elfwriter.shared_library
    try:
        head = make(machine, LIBRARY_BIN, LIBRARY_CTX, size)
    except ValueError as error:
        raise UsageError(f"the model is too large: {error}") from None
    with _replacing(os.fspath(path)) as temporary:
        if sources:
            _link(target, sources, temporary, [head, *pieces])
        else:
            _write(temporary, [head, *pieces])


def compile_functions(sources: Sources, path: str) -> None:
    """Make a library for this machine of native functions alone. Raises `UsageError`."""
    with _replacing(path) as temporary:
        _link(_target(None), [sources], temporary)


def _native(root: Module) -> Iterator[Sources]:
    """The modules that are to be the library's own code."""
    for module in walk(root):
        if isinstance(module, Sources):
            yield module
        elif module.kind == LIBRARY and module.names():
            raise UsageError(
                "native functions that are linked already cannot be linked into another library; "
                "put the file into the tree as a module of kind rpcsys.library"
            )


def _target(toolchain: Optional[Path]) -> _Target:
    if toolchain is not None:
        name = os.fspath(toolchain)
        found = toolchains.target(name)
        return _Target(found.machine, found.bits, name)
    return _Target(*elf.here(), None)


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[str]:
    """A name beside ``path`` to write to, which takes its place in the end; nothing is left of it otherwise.

    Whoever has the older file mapped keeps it. Raises `UsageError` where nothing can be written.
    """
    name = f".{os.path.basename(path)}.{os.getpid()}-{next(_numbers)}"
    temporary = os.path.join(os.path.dirname(path), name)
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _write(path: str, pieces: Sequence[Buffer]) -> None:
    with open(path, "wb", buffering=0) as file:
        for piece in pieces:
            left = memoryview(piece).cast("B")
            while left.nbytes:
                left = left[file.write(left[:_AT_ONCE]) :]


def _link(target: _Target, sources: Sequence[Sources], path: str, modules: Sequence[Buffer] = ()) -> None:
    """Make a library of code, and of an object file with the modules where there are any."""
    files = [file for module in sources for file in module.files]
    flags = [flag for module in sources for flag in module.flags]
    cxx = any(file.endswith(C_PLUS_PLUS) for file in files)
    # Beside the result: what is large may not fit elsewhere.
    with tempfile.TemporaryDirectory(prefix=".rpcsys-", dir=os.path.dirname(path) or None) as folder:
        objects = [_compiled(target, file, flags, folder, number) for number, file in enumerate(files)]
        if modules:
            objects.append(os.path.join(folder, "modules.o"))
            _write(objects[-1], modules)
        _run([*target.command(cxx), *_LINK, "-o", path, *objects, *flags], "link", files[0])


def _compiled(target: _Target, file: str, flags: Sequence[str], folder: str, number: int) -> str:
    """The object file of one source; ``file`` itself where it is none."""
    if not file.endswith(COMPILED):
        return file
    made = os.path.join(folder, f"{number}.o")
    # What compilers put into code of their own accord: the source's path, and names made at random.
    same = [f"-ffile-prefix-map={os.path.dirname(file)}=.", f"-frandom-seed={number}"]
    command = [*target.command(file.endswith(C_PLUS_PLUS)), *_COMPILE, *_headers(), *same, *flags]
    _run([*command, "-c", "-o", made, file], "compile", file)
    return made


def _headers() -> List[str]:
    """Where the TVM-FFI ABI is declared, if its package is installed."""
    spec = find_spec("tvm_ffi")
    places = (spec.submodule_search_locations or ()) if spec else ()
    folders = [os.path.join(place, "include") for place in places]
    return [f"-I{folder}" for folder in folders if os.path.isdir(folder)]


def _run(command: Sequence[str], verb: str, file: str) -> None:
    environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("collect2")]
        lines = [line for line in lines if "error:" in line] or lines
        said = " ".join(" ".join(lines[:3]).split())[:_SAID] or f"status {done.returncode}"
        raise UsageError(f"{os.path.basename(command[0])} could not {verb} {os.path.basename(file)}: {said}")
