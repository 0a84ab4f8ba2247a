"""The choice of the C library: what cannot be used is left unused, and the reason is one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from rpcsys import compiled
from tests.test_layers import ROOT

ASK = "from rpcsys import compiled, stream; print(stream.SPEEDUPS, compiled.WITHOUT)"
LIBRARY = Path(compiled.speedups.__file__) if compiled.speedups else None
needed = pytest.mark.skipif(LIBRARY is None, reason="the library is not built")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package without the library."""
    shutil.copytree(ROOT / "rpcsys", tmp_path / "rpcsys", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def asked(tree: Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    python = [sys.executable, "-c", ASK]
    done = subprocess.run(python, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_the_library_of_the_tree() -> None:
    assert asked(ROOT) == (f"False {compiled.WITHOUT}" if compiled.WITHOUT else "True")
    assert asked(ROOT, RPCSYS_SPEEDUPS="0") == "False RPCSYS_SPEEDUPS=0"


@needed
def test_a_library_that_is_not_there(tree: Path) -> None:
    assert asked(tree) == "False they are not compiled"


@needed
@pytest.mark.parametrize("size", [0, 10, 100, 1000, 4096, 20_000])
def test_a_library_that_is_cut_off(tree: Path, size: int) -> None:
    """The system's loader would end the process."""
    assert LIBRARY is not None
    place = tree / "rpcsys" / LIBRARY.name
    place.write_bytes(LIBRARY.read_bytes()[:size])
    reason = asked(tree)
    assert reason.startswith(f"False {place} ")
    assert "cut off" in reason or "is an empty file" in reason


@needed
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data.replace(b"\x7fELF", b"text", 1), "is not an ELF shared library"),
        (lambda data: data[:18] + b"\xf0\x00" + data[20:], "is for another processor"),
        (lambda data: data.replace(b"PyInit_speedups", b"PyInit_slowdown"), "PyInit_speedups"),
        (lambda data: data.replace(b"INTERFACE\0", b"INTERFICE\0"), "of another version of rpcsys"),
    ],
)
def test_a_library_that_does_not_fit(tree: Path, damage, reason: str) -> None:
    assert LIBRARY is not None
    (tree / "rpcsys" / LIBRARY.name).write_bytes(damage(LIBRARY.read_bytes()))
    answer = asked(tree)
    assert answer.startswith("False ")
    assert reason in answer
    assert len(answer.splitlines()) == 1


def test_a_changed_interface_has_a_new_number() -> None:
    declared = zlib.crc32((ROOT / "rpcsys" / "speedups.pyi").read_bytes())
    assert (compiled.INTERFACE, declared) == (4, 2086856220), (
        "raise INTERFACE in rpcsys/compiled.py and native/speedups.h"
    )
