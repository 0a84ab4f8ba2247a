"""Files of TVM's own tests. PyPI has no source of TVM, but that of TileLang, which contains TVM's with its tests."""

from __future__ import annotations

import fcntl
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.live.emulated import store
from tests.live.sdist import run

PACKAGE = "tilelang"
VERSION = "0.1.14"  # has TVM between 0.24 and 0.25
FOLDER = f"{PACKAGE}-{VERSION}/3rdparty/tvm/tests/python"
BACKEND = Path(__file__).with_name("sdist_backend")


def tvm_test(name: str) -> Path:
    """A file of ``tests/python``, unchanged. The first process that asks downloads 92 MB, while others wait."""
    kept = store() / f"{PACKAGE}-{VERSION}" / name
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.with_name(kept.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=store()) as work:
                _unpack(_downloaded(Path(work)), name, Path(work)).rename(kept)
    return kept


def _downloaded(folder: Path) -> Path:
    """The archive with the source. Fails with what pip says."""
    only = ["--no-deps", f"--no-binary={PACKAGE}", "--no-build-isolation", "--no-cache-dir"]
    pip = ["env", f"PYTHONPATH={BACKEND}", sys.executable, "-m", "pip", "download", "--quiet", *only]
    run([*pip, "--dest", str(folder), f"{PACKAGE}=={VERSION}"])
    return folder / f"{PACKAGE}-{VERSION}.tar.gz"


def _unpack(archive: Path, name: str, folder: Path) -> Path:
    """One file of the archive; what comes after it is not read."""
    wanted = f"{FOLDER}/{name}"
    with tarfile.open(archive) as files:
        member = next((member for member in files if member.name == wanted), None)
        assert member is not None, f"{archive.name} has no {wanted}"
        files.extract(member, folder, filter="data")
    return folder / wanted
