"""Two unpacked versions of the device runtime: this version and a later one."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import rpcsys
from rpcsys.pack import build

NEXT = "9.9.9"


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpack an archive below ``folder``; the new folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="fully_trusted")
    return folder / build.TOP


def successor(old: Path, folder: Path) -> Path:
    """A copy of ``old`` with a later version, also in its manifest."""
    top = folder / build.TOP
    shutil.copytree(old, top)
    name = "python/rpcsys/__init__.py"
    (top / name).write_text((top / name).read_text().replace(rpcsys.__version__, NEXT))
    manifest = json.loads((top / "manifest.json").read_text())
    manifest["version"] = NEXT
    manifest["files"][name] = hashlib.sha256((top / name).read_bytes()).hexdigest()
    (top / "manifest.json").write_text(json.dumps(manifest))
    return top
