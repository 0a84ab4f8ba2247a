"""The optional library ``rpcsys.speedups`` for another machine, compiled by that machine's toolchain."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from rpcsys import data
from rpcsys.errors import UsageError
from rpcsys.module import toolchain
from rpcsys.pack import libraries
from rpcsys.pack.libraries import PackTarget, Prepared, Source

#: By this name any CPython from 3.9 on imports it.
NAME = "speedups.abi3.so"
_PYTHON = (3, 11)  # the first whose headers declare a limited API with buffers


def speedups(
    wanted: Path | bool, target: PackTarget, toolchain_file: str | Path, work: Path
) -> tuple[list[Prepared], str]:
    """The library, checked for the target like all libraries, in a list; or an empty list and why there is none.

    ``wanted`` is a file, or whether to compile one in the new folder ``work``. Raises UsageError for a file that the
    board could not load.
    """
    if wanted is False:
        return [], ""
    if wanted is not True and not wanted.is_file():
        raise UsageError(f"--speedups {wanted}: there is no such file; give another, or none")
    work.mkdir()
    try:
        path = library(toolchain_file, work) if wanted is True else wanted
        ready = libraries.prepare(Source(path, str(path)), target, (), work / "ready")
    except UsageError as error:
        if wanted is not True:
            raise
        return [], f"this board goes without the speedups: {error}".replace(f"{work}/", "")
    return [ready._replace(name=NAME)], ""


def library(toolchain_file: str | Path, folder: Path) -> Path:
    """Compile the library in ``folder``; its path.

    Raises UsageError if there is no compiler for the target, or if there are no headers of Python.
    """
    command = toolchain.find(toolchain_file).command()
    native, made = data.folder("native"), folder / NAME
    command += ["@flags", "-s", f"-I{_headers(native, folder / 'include')}"]
    command += [*sorted(file.name for file in native.glob("*.c")), "-o", str(made)]
    # From within their folder: the sources' paths leave no trace in the library.
    done = subprocess.run(command, cwd=native, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        raise UsageError(f"{command[0]} cannot compile them: {(lines or ['it does not say why'])[0]}")
    return made


def _headers(native: Path, folder: Path) -> Path:
    """Copy this Python's headers to ``folder``, with a pyconfig.h that fits every processor."""
    own = Path(sysconfig.get_path("include"))
    if sys.version_info < _PYTHON or not (own / "Python.h").is_file():
        raise UsageError("they need the headers of Python 3.11 or later; type: sudo apt-get install python3-dev")
    shutil.copytree(own, folder, ignore=shutil.ignore_patterns("pyconfig.h"))
    shutil.copyfile(native / "pyconfig.h", folder / "pyconfig.h")
    return folder
