"""Native libraries for tests: compiled here, called in this process or by a bare interpreter."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.device_files import ROOT, device_files

FUNCTIONS = ROOT / "tests" / "ffi" / "functions.c"


def compiled(source: Path, target: Path, *flags: str, compiler: Sequence[str] = ("cc",)) -> Path:
    """``source`` as a shared library at ``target``."""
    command = [*compiler, "-shared", "-fPIC", "-O2", "-w", *flags, "-o", str(target), str(source)]
    subprocess.run(command, check=True)
    return target


def lay_out(folder: Path) -> Path:
    """The device tier alone in ``folder``."""
    for file in device_files():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, folder / file)
    return folder


def bare(board: Path, code: str, *args: object, python: str = sys.executable) -> str:
    """The output of ``code`` under an isolated Python with ``board`` alone. A failure shows its stderr."""
    start = "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
    done = subprocess.run(
        [python, "-I", "-S", "-c", start + code, str(board), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,  # an emulated machine takes 10 s, on a busy one many times that
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
