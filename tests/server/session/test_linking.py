"""Linking what TVM's clients upload."""

from __future__ import annotations

import ctypes
import subprocess
import tarfile
from pathlib import Path

import pytest

from rpcsys.server.session import linking


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An object file with ``int answer(void)``."""
    source = tmp_path / "f.c"
    source.write_text("int answer(void) { return 42; }")
    subprocess.run(["cc", "-fPIC", "-c", str(source), "-o", str(tmp_path / "f.o")], check=True)
    return tmp_path / "f.o"


def test_an_object(made: Path) -> None:
    assert ctypes.CDLL(linking.link(str(made))).answer() == 42


def test_a_tar_whatever_its_names(made: Path) -> None:
    path = made.with_name("f.tar")
    with tarfile.open(path, "w") as archive:
        archive.add(made, "../../outside/f.o")
    assert ctypes.CDLL(linking.link(str(path))).answer() == 42
    assert not (made.parent.parent.parent / "outside").exists()


def test_a_library_is_itself() -> None:
    assert linking.link("/models/a.so") == "/models/a.so"


def test_only_what_can_be_linked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"notes\.txt"):
        linking.link("/models/notes.txt")
    broken = tmp_path / "broken.tar"
    broken.write_bytes(b"x" * 1024)
    with pytest.raises(ValueError, match=r"broken\.tar"):
        linking.link(str(broken))


def test_no_compiler_is_said(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(made.parent))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeError, match="no compiler"):
        linking.link(str(made))


def test_what_the_linker_says_is_passed_on(tmp_path: Path) -> None:
    broken = tmp_path / "broken.o"
    broken.write_bytes(b"no object")
    with pytest.raises(RuntimeError, match=r"broken\.o cannot be linked"):
        linking.link(str(broken))
