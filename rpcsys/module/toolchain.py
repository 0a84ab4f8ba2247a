"""A target's compiler, found from its CMake toolchain file, on a desktop machine that compiles and packs models.

The files in ``toolchains/`` have plain ``set(NAME value)`` lines and leave the search for compilers to ``cross.cmake``;
this module does the same without CMake. It also reads a user's own file, if it names its compilers in such lines.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from rpcsys import data
from rpcsys.errors import ConfigError, UsageError
from rpcsys.module import elf

#: The file that all others include; its CMake code is repeated in `_debian_compilers` and `_vendor_compilers`.
_SHARED = "cross.cmake"
_COMMENT = re.compile(r"#[^\n]*")
_COMMAND = re.compile(r'(set|include)\s*\(\s*("[^"]*"|[^\s()]+)\s*([^()]*)\)', re.IGNORECASE)
_VARIABLE = re.compile(r"\$(ENV)?\{(\w+)\}")
_MAX_INCLUDES = 16  # deeper includes are taken for a circle


PathLike = Union[str, Path]


class Toolchain(NamedTuple):
    """The programs that build for a target. ``cc``, ``cxx`` and ``strip`` are paths."""

    name: str  # the target's name, such as ``aarch64-linux-gnu``
    machine: str  # the machine of its ELF files (`rpcsys.module.elf`), such as ``aarch64``
    bits: int  # 32 or 64
    cc: str
    cxx: str
    strip: str
    flags: Tuple[str, ...] = ()  # arguments that the programs need for this target
    sysroot: Optional[str] = None  # the folder of the target's headers and libraries; None for the compiler's own

    def command(self, *, cxx: bool = False) -> List[str]:
        """The first words of a command that compiles or links."""
        sysroot = [f"--sysroot={self.sysroot}"] if self.sysroot else []
        return [self.cxx if cxx else self.cc, *self.flags, *sysroot]


class Target(NamedTuple):
    """A target as its toolchain file describes it, with or without a compiler here: ELF ``machine`` and ``bits``."""

    name: str
    machine: str
    bits: int


def names() -> List[str]:
    """The targets whose toolchain files rpcsys includes."""
    return sorted(file.stem for file in data.folder("toolchains").glob("*-*.cmake"))


def target(wanted: PathLike) -> Target:
    """The target of a toolchain file, by name or path; needs no compiler. Raises `UsageError`."""
    return _target(_file(wanted), _read(_file(wanted)))


def find(wanted: PathLike, *, root: Optional[PathLike] = None, sysroot: Optional[PathLike] = None) -> Toolchain:
    """Find the toolchain of a target.

    ``wanted`` is a name, such as ``aarch64-linux-gnu``, or the path of a toolchain file. ``root`` is the folder of a
    vendor's toolchain (above its ``bin``), else ``$RPCSYS_TOOLCHAIN_ROOT``. ``sysroot`` is the folder of the target's
    headers and libraries, else ``$RPCSYS_SYSROOT``, else the compiler's own.

    Raises `UsageError` for an unknown target, an incomplete toolchain file, or a missing compiler (with the package to
    install); `ConfigError` if ``root`` or ``sysroot`` is not a folder.
    """
    file = _file(wanted)
    values = _read(file)
    name, machine, bits = _target(file, values)
    root = _folder("RPCSYS_TOOLCHAIN_ROOT", root, values)
    sysroot = _folder("RPCSYS_SYSROOT", sysroot, values) or values.get("CMAKE_SYSROOT")
    if "CMAKE_C_COMPILER" in values:
        cc, cxx, strip = _named_compilers(file, values)
    elif "RPCSYS_TRIPLE" in values:
        cc, cxx, strip = _vendor_compilers(root, values) if root else _debian_compilers(machine, values)
    else:
        raise UsageError(f"{file} names no compiler; add: set(CMAKE_C_COMPILER /opt/vendor/bin/vendor-gcc)")
    flags = values.get("RPCSYS_FLAGS") or values.get("CMAKE_C_FLAGS_INIT") or values.get("CMAKE_C_FLAGS") or ""
    return Toolchain(name, machine, bits, cc, cxx, strip, tuple(_words(flags, file)), sysroot)


def _file(wanted: PathLike) -> Path:
    path = Path(wanted)
    if path.suffix == ".cmake":
        if not path.is_file():
            raise UsageError(f"there is no toolchain file {path}")
        return path.resolve()
    if str(wanted) not in names():
        known = ", ".join(names())
        raise UsageError(
            f"no toolchain file for {str(wanted) or repr('')}: there are {known}, or give the path of a .cmake file"
        )
    return data.folder("toolchains") / f"{wanted}.cmake"


def _read(file: Path, values: Optional[Dict[str, str]] = None, depth: int = 0) -> Dict[str, str]:
    """The variables that ``file`` and its includes set."""
    values = {} if values is None else values
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the toolchain file {file}: {error}") from None
    for command, first, rest in _COMMAND.findall(_COMMENT.sub("", text)):
        values["CMAKE_CURRENT_LIST_DIR"] = str(file.parent)
        if command.lower() == "set":
            values[first] = " ".join(_words(_expand(rest.partition(" CACHE ")[0], values), file))
        else:
            included = Path(_expand(first.strip('"'), values))
            if included.name != _SHARED and depth < _MAX_INCLUDES:
                _read(file.parent / included, values, depth + 1)
    return values


def _words(text: str, file: Path) -> List[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise UsageError(f"the toolchain file {file} cannot be read at: {text.strip()}") from None


def _expand(text: str, values: Dict[str, str]) -> str:
    return _VARIABLE.sub(lambda match: (os.environ if match[1] else values).get(match[2], ""), text)


def _target(file: Path, values: Dict[str, str]) -> Target:
    processor = values.get("CMAKE_SYSTEM_PROCESSOR")
    if processor is None:
        raise UsageError(f"{file} names no target; add, for example: set(CMAKE_SYSTEM_PROCESSOR aarch64)")
    machine = elf.machine_of(processor)
    if machine not in elf.MACHINES.values():
        raise UsageError(f"{file}: {processor} is no processor that is known here")
    bits = 32 if machine in ("arm", "i386", "ppc", "hexagon") or processor.endswith("32") else 64
    return Target(values.get("RPCSYS_TRIPLE", file.stem), machine, bits)


def _folder(name: str, given: Optional[PathLike], values: Dict[str, str]) -> Optional[str]:
    path = str(given) if given else values.get(name) or os.environ.get(name)
    if path and not os.path.isdir(path):
        raise ConfigError(f"{name}: there is no folder {path}")
    return os.path.abspath(path) if path else None


def _named_compilers(file: Path, values: Dict[str, str]) -> Tuple[str, str, str]:
    """The compilers that a user's own file names."""
    cc = values["CMAKE_C_COMPILER"]
    found = shutil.which(cc)
    if found is None:
        raise UsageError(f"there is no {cc} here, which {file} names as its compiler")
    cxx, strip = values.get("CMAKE_CXX_COMPILER"), values.get("CMAKE_STRIP")
    return found, cxx or _sibling(found, "g++"), strip or _sibling(found, "strip")


def _vendor_compilers(root: str, values: Dict[str, str]) -> Tuple[str, str, str]:
    folder = Path(root) / "bin"
    patterns = (values["RPCSYS_TRIPLE"], values["RPCSYS_VENDOR_TRIPLES"])
    for pattern in patterns:
        for cc in map(str, sorted(folder.glob(pattern + "-gcc"))):
            return cc, _sibling(cc, "g++"), _sibling(cc, "strip")
    where = "RPCSYS_TOOLCHAIN_ROOT is the folder above the compilers' bin folder"
    raise UsageError(f"there is no {patterns[1]}-gcc in {folder}; {where}")


def _debian_compilers(machine: str, values: Dict[str, str]) -> Tuple[str, str, str]:
    triple, packages = values["RPCSYS_TRIPLE"], values["RPCSYS_PACKAGES"]
    prefixes = [triple + "-"]
    if machine == elf.machine_of(platform.machine()):
        # For this machine's own target a compiler without a prefix will do.
        prefixes, packages = [triple + "-", ""], "gcc g++"
    for prefix in prefixes:
        found = [shutil.which(prefix + tool) for tool in ("gcc", "g++", "strip")]
        if found[0] and found[1] and found[2]:
            return found[0], found[1], found[2]
    text = f"there is no {triple}-gcc and -g++ here; type: sudo apt-get install {packages}"
    raise UsageError(f"{text} (or name a vendor's toolchain with RPCSYS_TOOLCHAIN_ROOT=DIR)")


def _sibling(cc: str, tool: str) -> str:
    """The ``tool`` that belongs to a compiler: its path with the last word replaced."""
    folder, name = os.path.split(cc)
    prefix = name[: -len("gcc")] if name.endswith("gcc") else ""
    return os.path.join(folder, prefix + tool)
