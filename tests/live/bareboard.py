"""The device server of a bare board: ``python3 -I -S``, a folder with the device tier, and two libraries.

``python -m tests.live.bareboard FLAGS…`` creates the folder in ``$TMPDIR`` and executes the server.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.device_files import ROOT, device_files

SERVE = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("rpcsys.server", run_name="__main__", alter_sys=True)
"""
LIBRARIES = {"tvm_ffi": "libtvm_ffi.so", "tvm": "libtvm_runtime.so"}


def library(package: str) -> Path:
    """The path of the library in the wheel of ``package``."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "lib" / LIBRARIES[package]


def lay_out(folder: Path) -> None:
    """Copy the device tier into ``folder``; link the two libraries in ``folder/lib``."""
    for file in device_files():
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, target)
    (folder / "lib").mkdir()
    for package in LIBRARIES:
        path = library(package)
        os.symlink(path, folder / "lib" / path.name)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="board"))
    lay_out(folder)
    command = [sys.executable, "-I", "-S", "-c", SERVE, str(folder), "--tvm-library", str(folder / "lib")]
    os.execv(sys.executable, [*command, *sys.argv[1:]])


if __name__ == "__main__":
    main()
