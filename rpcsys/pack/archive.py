"""The archive: the same files in, the same bytes out, whoever packs and whenever."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

from rpcsys.errors import RpcsysError, UsageError

TOP = "rpcsys-device"
_ROUNDS = 3  # of zopfli's search: more gain a few bytes and take seconds
#: xz for text: four bits of the byte before predict the next one, and nothing is aligned.
_XZ = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}
_EPOCH, _SPAN = 946684800, 1 << 28  # 2000-01-01 and half of the time since then, in seconds


def write(path: Path, files: Mapping[str, bytes], programs: frozenset[str]) -> None:
    """Write ``files`` (path in the archive -> content) to ``path``; ``programs`` may be executed.

    A ``path`` that ends in ``.xz`` is compressed by xz, any other by gzip, which every board can unpack. What is at
    ``path`` is whole: the old file or the new one. Raises RpcsysError.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        compress = _xz if path.suffix == ".xz" else _zipped
        partial.write_bytes(compress(_tar(files, programs)))
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RpcsysError(f"cannot write {path}: {error.strerror}") from None


def _zipped(content: bytes) -> bytes:
    """As gzip -9, in a twentieth less. Neither a name nor a time goes into the header: they differ between runs."""
    try:
        from zopfli import gzip
    except ImportError:
        raise UsageError("there is no zopfli here; type: python -m pip install 'rpcsys[pack]'") from None
    zipped: bytes = gzip.compress(content, numiterations=_ROUNDS)
    return zipped


def _xz(content: bytes) -> bytes:
    """A seventh less than gzip, for boards that have xz."""
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
    """A time that changes when anything in the archive does, and else never.

    Python takes compiled code for fresh by the time and the size of its source: unpacked over an older version, with
    always the same time, a file of the same size would never be read.
    """
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    return _EPOCH + int.from_bytes(digest.digest()[:4], "big") % _SPAN
