"""Builds the device runtime for one kind of board."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Any, NamedTuple

import rpcsys
from rpcsys import data
from rpcsys.errors import RpcsysError, UsageError
from rpcsys.module import toolchain
from rpcsys.pack import compiled, libraries, source
from rpcsys.pack.libraries import PackTarget, Prepared, Source, version_text

PYTHON, NATIVE, DRIVERS, LICENSES = "python", "python/lib", "drivers", "licenses"  # folders of the archive
TOP, MANIFEST = "rpcsys-device", "manifest.json"
_ROUNDS = 3  # of zopfli's search: more gain a few bytes and take seconds
#: xz for text: four bits of the byte before predict the next one, and nothing is aligned.
_XZ = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}
_EPOCH, _SPAN = 946684800, 1 << 28  # 2000-01-01 and half of the time since then, in seconds
_PYTHON_VERSION = "3.8"  # the oldest Python of a board: the device tier's


class Packed(NamedTuple):
    """The result of packing."""

    path: Path
    manifest: dict[str, Any]  # as in the archive
    size: int  # of the archive, in bytes
    remarks: tuple[str, ...]  # for the user who packs


def pack(
    target: str, output: Path, *, folder: Path | None = None, from_wheels: bool = False,
    drivers: Sequence[Path] = (), glibc: str | None = None, speedups: Path | bool = True,
    say: Callable[[str], object] = lambda text: None,
) -> Packed:  # fmt: skip
    """Write the device runtime for ``target`` to ``output``.

    TVM's libraries come from the build folder ``folder``, or from PyPI. Without either, the board serves everything
    that needs none. ``drivers`` are included and loaded in every session. ``glibc`` is the newest C library that any of
    them may require. ``speedups`` is a file with the library ``rpcsys.speedups``; if True, it is compiled, and where
    that is impossible a remark says why. ``say`` gets a text at each step that takes long. Raises UsageError for an
    unknown target, or a library that the board could not load, RpcsysError if the wheels cannot be downloaded, or the
    archive cannot be written.
    """
    _check_output(output)
    if folder is not None and from_wheels:
        raise UsageError("--libraries and --from-wheels: TVM's libraries come from one of them")
    name, machine, bits = toolchain.target(target)
    board = PackTarget(name, machine, bits, libraries.parse_version(glibc) if glibc else ())
    with tempfile.TemporaryDirectory(prefix="rpcsys-pack-") as work:
        sources = libraries.from_folder(folder) if folder is not None else []
        if from_wheels:
            say("downloading TVM's libraries")
        sources += libraries.from_wheels(board, Path(work)) if from_wheels else []
        native = _prepared(sources, board, Path(work) / "native")
        extra = _prepared(libraries.drivers(drivers), board, Path(work) / "drivers")
        if speedups is True:
            say("compiling the library for faster calls")
        fast, remark = compiled.speedups(speedups, board, target, Path(work) / "speedups")
        say("compressing")
        packed = _write(output, board, native, extra, fast)
    return packed._replace(remarks=(*packed.remarks, remark)) if remark else packed


def _check_output(path: Path) -> None:
    """Raise UsageError, before the work, for a path at which no archive can be written."""
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():  # renamed onto a device, the archive would take its place
        raise UsageError(f"cannot write {path}: it is no file; give another name with -o")


def _prepared(sources: Sequence[Source], target: PackTarget, work: Path) -> list[Prepared]:
    work.mkdir()
    names = [each.path.name for each in sources]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"there are two libraries called {name}")
    return [libraries.prepare(each, target, names, work) for each in sources]


def _write(
    output: Path, target: PackTarget, native: list[Prepared], extra: list[Prepared], fast: list[Prepared]
) -> Packed:
    everything = [*native, *extra]
    files = {**_python(), **_board(), **_licences(everything)}
    files.update({f"{NATIVE}/{library.name}": library.content for library in native})
    files.update({f"{DRIVERS}/{library.name}": library.content for library in extra})
    files.update({f"{PYTHON}/rpcsys/{library.name}": library.content for library in fast})
    manifest = _manifest(target, files, everything, fast)
    files[MANIFEST] = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    programs = frozenset(name for name in files if name.startswith(("bin/", "init/")) or name.endswith(".sh"))
    write_archive(output, files, programs)
    return Packed(output, manifest, output.stat().st_size, tuple(_remarks(everything)))


def _remarks(native: list[Prepared]) -> Iterator[str]:
    names = {library.name for library in native}
    if libraries.FFI in names and libraries.RUNTIME not in names:
        yield f"there is no {libraries.RUNTIME}: this board will serve no TVM clients and no Relax programs"
    for origin in sorted({library.source.origin for library in native if not library.source.licences}):
        yield f"no licence was found beside {origin}: add it before you pass the archive on"


def _python() -> dict[str, bytes]:
    """The Python part: the device tier, cloudpickle, and the stub of numpy."""
    spec = util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        raise UsageError("cloudpickle is needed and is not installed; type: python -m pip install cloudpickle")
    stub = data.folder("packaging") / "numpy_stub"
    files = dict(source.device_files())
    files.update({f"cloudpickle/{file.name}": file for file in Path(spec.origin).parent.glob("*.py")})
    files.update({f"numpy_stub/{file.relative_to(stub).as_posix()}": file for file in stub.rglob("*.py")})
    return {f"{PYTHON}/{name}": _content(file) for name, file in files.items()}


def _board() -> dict[str, bytes]:
    """Programs that start and install the runtime, and the systemd units, if there are any."""
    board, units = data.folder("packaging") / "board", data.folder("systemd")
    files = {file.relative_to(board).as_posix(): file for file in board.rglob("*") if "__pycache__" not in file.parts}
    files.update({f"systemd/{file.name}": file for file in units.glob("rpcsys-server*")})
    return {name: _content(file) for name, file in files.items() if file.is_file()}


def _content(file: Path) -> bytes:
    return source.blanked(file.read_text(encoding="utf-8")).encode() if file.suffix == ".py" else file.read_bytes()


def _licences(native: Iterable[Prepared]) -> dict[str, bytes]:
    """All licences, each text once: ``licenses/PROJECT/NAME``."""
    found = [(package, file) for package in ("rpcsys", "cloudpickle") for file in _own_licences(package)]
    found += [(library.name.partition(".")[0], file) for library in native for file in library.source.licences]
    texts: dict[bytes, str] = {}
    for project, file in found:
        name = f"{LICENSES}/{project}/{file.name}"
        taken = name in texts.values()
        texts.setdefault(file.read_bytes(), f"{LICENSES}/{project}/{file.parent.name}-{file.name}" if taken else name)
    return {name: text for text, name in texts.items()}


def _own_licences(package: str) -> list[Path]:
    """The licences of an installed package; of a checkout, the one at its root."""
    files = metadata.files(package) or []
    named = [file for file in files if file.name.startswith(("LICENSE", "NOTICE")) and ".dist-info" in str(file)]
    return [Path(str(file.locate())) for file in named] or [source.ROOT / "LICENSE"]


def _manifest(
    target: PackTarget, files: dict[str, bytes], native: list[Prepared], fast: list[Prepared]
) -> dict[str, Any]:
    return {
        "name": TOP,
        "version": rpcsys.__version__,
        "target": target.name,
        "machine": target.machine,
        "bits": target.bits,
        "python": _PYTHON_VERSION,
        "cloudpickle": metadata.version("cloudpickle"),
        "glibc": version_text(max((library.needs.glibc for library in native), default=())),
        "glibcxx": version_text(max((library.needs.glibcxx for library in native), default=())),
        "libraries": {library.name: _described(library) for library in native},
        # Apart: a board that cannot load it serves without it.
        "speedups": {library.name: _described(library) for library in fast},
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())},
    }


def _described(library: Prepared) -> dict[str, Any]:
    return {
        "from": library.source.origin if library.source.origin.endswith(".whl") else "",
        "glibc": version_text(library.needs.glibc),
        "needs": list(library.needs.needed),
    }


# The archive: the same files give the same bytes, on every machine and at any time


def write_archive(path: Path, files: Mapping[str, bytes], programs: frozenset[str]) -> None:
    """Write ``files`` (path in the archive -> content) to ``path``; ``programs`` are executable. Raises RpcsysError.

    A ``path`` that ends in ``.xz`` is compressed by xz, any other by gzip, which every board can unpack.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    partial = path.with_name(path.name + ".partial")
    try:
        compress = _xz if path.suffix == ".xz" else _zipped
        partial.write_bytes(compress(_tar(files, programs)))
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RpcsysError(f"cannot write {path}: {error.strerror}") from None


def _zipped(content: bytes) -> bytes:
    """Compress a twentieth better than gzip -9. The header has no name or time: they would differ between runs."""
    try:
        from zopfli import gzip
    except ImportError:
        raise UsageError("there is no zopfli here; type: python -m pip install 'rpcsys[pack]'") from None
    zipped: bytes = gzip.compress(content, numiterations=_ROUNDS)
    return zipped


def _xz(content: bytes) -> bytes:
    """Compress a seventh better than gzip, for boards that have xz."""
    return lzma.compress(content, check=lzma.CHECK_CRC32, filters=[_XZ])


def _tar(files: Mapping[str, bytes], programs: frozenset[str]) -> bytes:
    buffer, time = io.BytesIO(), _time(files)
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(f"{TOP}/{name}")
            entry.size = len(files[name])
            entry.mode = 0o755 if name in programs else 0o644
            entry.mtime = time
            tar.addfile(entry, io.BytesIO(files[name]))
    return buffer.getvalue()


def _time(files: Mapping[str, bytes]) -> int:
    """A time that changes if and only if any content of the archive changes.

    Python decides by time and size of the source whether compiled code is fresh: if an archive is unpacked over an
    older version and all times are equal, a changed file of the same size would not be read.
    """
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    return _EPOCH + int.from_bytes(digest.digest()[:4], "big") % _SPAN
