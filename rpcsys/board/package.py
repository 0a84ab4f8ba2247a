"""Archives for boards: packed once for all boards that are alike, or an existing archive."""

from __future__ import annotations

import hashlib
import json
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rpcsys.board import facts
from rpcsys.board.inventory import Entry
from rpcsys.errors import RpcsysError, UsageError
from rpcsys.pack import build
from rpcsys.pack.libraries import parse_version

WHEELS = "wheels"  # instead of a build folder: TVM's libraries are PyPI's
MARGIN = 1 << 20  # bytes that must stay free on a board


@dataclass(frozen=True)
class Package:
    """An archive; sizes are in bytes."""

    path: Path
    name: str  # the name of the installed version
    digest: str  # its SHA-256
    target: str
    machine: str
    bits: int
    glibc: str
    native: bool
    size: int
    unpacked: int

    @property
    def needs(self) -> int:
        """Bytes needed during installation: the archive, its contents, and the copy that stays."""
        return self.size + 2 * self.unpacked + MARGIN


def read(path: Path) -> Package:
    """Read the archive at ``path``. Raises UsageError if `rpcsys pack` did not write it."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with tarfile.open(path) as tar:
            unpacked = sum(member.size for member in tar)
            file = tar.extractfile(f"{build.TOP}/{build.MANIFEST}")
            assert file is not None  # a folder has no content; `rpcsys pack` writes none
            text = file.read()
        says = json.loads(text)
        return Package(
            path=path,
            name=f"{says['version']}-{hashlib.sha256(text).hexdigest()[:8]}",
            digest=digest,
            **{name: says[name] for name in ("target", "machine", "bits", "glibc")},
            native=bool(says["libraries"]),
            size=path.stat().st_size,
            unpacked=unpacked,
        )
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (tarfile.TarError, EOFError, KeyError, TypeError, ValueError, AssertionError):
        raise UsageError(f"{path} is no device runtime; `rpcsys pack` makes one") from None


def check(package: Package, board: facts.BoardFacts, python: facts.Python, host: str) -> None:
    """Refuse an archive with libraries that the board could not load. Raises RpcsysError."""
    if not package.native:
        return  # pure Python runs on every board
    if (package.machine, package.bits) != facts.machine(board, python):
        text = f"{package.path} is for {package.target}, and {host} is {board.machine} with {python.bits} bits"
        raise RpcsysError(text)
    has = facts.glibc(python)
    if package.glibc and has and parse_version(package.glibc) > parse_version(has):
        raise RpcsysError(f"{package.path} needs glibc {package.glibc}, and {host} has {has}")


class Packer:
    """Packs into ``folder`` once for each kind of board, for several threads; or uses ``given`` for all boards."""

    def __init__(self, folder: Path, given: Path | None, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._given = given
        self._warn = warn
        self._made: dict[tuple[object, ...], Package] = {}
        self._lock = threading.Lock()

    def package(self, entry: Entry, board: facts.BoardFacts, python: facts.Python, host: str) -> Package:
        """The archive for a board, with the libraries that ``entry`` names. Raises what `build.pack` raises."""
        given = self._given
        package = read(given) if given else self._packed(entry, facts.target(board, python, host), facts.glibc(python))
        check(package, board, python, host)
        return package

    def _packed(self, entry: Entry, target: str, glibc: str | None) -> Package:
        kind = (target, glibc, entry.libraries, entry.drivers)
        with self._lock:
            if kind not in self._made:
                path = self._folder / f"{len(self._made)}.tar.gz"
                from_wheels = entry.libraries == WHEELS
                folder = Path(entry.libraries) if entry.libraries and not from_wheels else None
                drivers = [Path(driver) for driver in entry.drivers]
                packed = build.pack(target, path, folder=folder, from_wheels=from_wheels, drivers=drivers, glibc=glibc)
                for remark in packed.remarks:
                    self._warn(remark)
                self._made[kind] = read(path)
            return self._made[kind]
