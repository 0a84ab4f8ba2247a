"""The file of an auto-tuner's candidate: a shared library, or object files that are linked here before they are sent.

TVM's LocalBuilder makes a tar of object files. A board needs no compiler: the linker is this machine's own, or that of
a toolchain for the machine of the objects (`rpcsys.module.toolchain`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path

from rpcsys.errors import UsageError
from rpcsys.module import elf, toolchain

#: Any of them links; C++'s come first, because objects of C++ need its library. ``$CXX`` comes before all.
COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")
LINK_S = 120.0  # a linker that takes longer counts as hung
_STRICT = ("-z", "defs", "--warn-unresolved-symbols")
_LIBRARIES = ("--as-needed", "-lm", "-lc")
_UNRESOLVED = re.compile(r"warning: undefined reference to [`'](\w+)'")
#: The most bytes of one object file in a tar, and of all of them.
MAX_BYTES = 1 << 30


class Artefact:
    """A candidate's file at ``path``, which ends in .so, .o or .tar. Every method raises `UsageError`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._linking: Future[bytes] | None = None

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the code alone: not of the file's name, and not of the names and times in a tar."""
        parts = sorted(hashlib.sha256(part).hexdigest() for part in self._parts())
        return hashlib.sha256("\n".join([Path(self.path).suffix, *parts]).encode()).hexdigest()

    @functools.cached_property
    def code(self) -> bytes:
        """The shared library."""
        return self._made() if self._linking is None else self._linking.result()

    def prepare(self, pool: Executor) -> None:
        """Have the object files linked in another thread."""
        if self._linking is None and self._is_objects:
            with contextlib.suppress(RuntimeError):  # the pool is closed
                self._linking = pool.submit(self._made)

    @property
    def _is_objects(self) -> bool:
        return self.path.endswith((".o", ".tar"))

    def _made(self) -> bytes:
        return linked(list(self._parts())) if self._is_objects else next(self._parts())

    def _parts(self) -> Iterator[bytes]:
        """The library, or the object files."""
        try:
            if not self.path.endswith(".tar"):
                yield Path(self.path).read_bytes()
                return
            with tarfile.open(self.path) as archive:
                yield from _members(archive)
        except (OSError, tarfile.TarError) as error:
            raise UsageError(f"the candidate {self.path} cannot be read: {error}") from None


def _members(archive: tarfile.TarFile) -> Iterator[bytes]:
    size = 0
    for member in archive:
        size += member.size
        if size > MAX_BYTES:
            raise UsageError(f"the candidate {archive.name!s} has more than {MAX_BYTES >> 30} GiB of object files")
        stream = archive.extractfile(member) if member.isfile() else None
        if stream is not None:
            yield stream.read()


def linked(objects: list[bytes]) -> bytes:
    """The shared library that the linker for their machine makes of object files. Raises `UsageError`."""
    if not objects:
        raise UsageError("the candidate has no object files; build it again")
    with tempfile.TemporaryDirectory(prefix="rpcsys-link-") as folder:
        paths = []
        for number, part in enumerate(objects):
            paths.append(os.path.join(folder, f"{number}.o"))
            Path(paths[-1]).write_bytes(part)
        made = os.path.join(folder, "candidate.so")
        machine = _machine(objects[0])
        if machine != elf.here() or not _linked_alone(made, paths):
            done = _run([*_linker(machine), "-shared", "-fPIC", "-o", made, *paths])
            if done.returncode:
                raise UsageError(f"the candidate cannot be linked: {' '.join(done.stderr.split())[-400:]}")
        return Path(made).read_bytes()


def _linked_alone(made: str, paths: list[str]) -> bool:
    """Link without a compiler, which takes six times as long; False if the objects need more than C's libraries."""
    linker = shutil.which("ld")
    if linker is None:
        return False
    done = _run([linker, "-shared", "--eh-frame-hdr", *_STRICT, "-o", made, *paths, *_LIBRARIES])
    missing = _UNRESOLVED.findall(done.stderr)
    known = len(missing) == done.stderr.count("warning") and all(name.startswith("TVM") for name in missing)
    return not done.returncode and known


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a linker, whose messages are in English."""
    english = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=LINK_S, check=False, env=english)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]} cannot link the candidate: {error}") from None


def _machine(code: bytes) -> tuple[str, int]:
    """The machine of an object file, and its bits. Raises `UsageError`."""
    number = int.from_bytes(code[18:20], "big" if code[5:6] == b"\2" else "little")  # e_machine
    if code[:4] != b"\x7fELF" or number not in elf.MACHINES:
        raise UsageError("the candidate holds something else than object files of a known machine")
    return elf.MACHINES[number], 64 if code[4] == 2 else 32


@functools.cache
def _linker(machine: tuple[str, int]) -> tuple[str, ...]:
    """The first words of the command that links for a machine. Raises `UsageError` if there is none here."""
    if machine == elf.here():
        wanted = [os.environ.get("CXX", ""), *COMPILERS]
        found = next((path for path in map(shutil.which, filter(None, wanted)) if path), None)
        if found is None:
            raise UsageError(f"there is no compiler here ({', '.join(COMPILERS)}) to link candidates; install g++")
        return (found,)
    names = [name for name in toolchain.names() if _fits(name, machine)]
    problem = f"candidates are for {machine[0]} ({machine[1]} bits), and this machine is {platform.machine()}"
    for name in names:
        try:
            return tuple(toolchain.find(name).command(cxx=True))
        except UsageError as error:
            problem = str(error)
    raise UsageError(f"{problem}; or have the builder export a shared library (docs/tuning.md)")


def _fits(name: str, machine: tuple[str, int]) -> bool:
    target = toolchain.target(name)
    return (target.machine, target.bits) == machine
