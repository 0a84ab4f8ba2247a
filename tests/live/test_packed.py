"""The packed device tier on every Python of this machine, and its error on older Pythons."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device_files import ROOT
from tests.live import versions
from tests.pythons import pythons

pytestmark = pytest.mark.slow

OLDER = sorted(Path.home().glob(".pyenv/versions/[23].[0-7].*/bin/python"))


@pytest.fixture(scope="module")
def top(current_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return versions.unpacked(current_archive, tmp_path_factory.mktemp("packed"))


def run(python: str | Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RPCSYS"))}
    return subprocess.run(
        list(map(str, command)),
        env={**kept, "RPCSYS_PYTHON": str(python)},
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("version", pythons())
def test_the_self_test_passes(version: str, top: Path) -> None:
    done = run(pythons()[version], top / "bin" / "rpcsys-server", "--self-test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nok       session " in done.stdout


@pytest.mark.parametrize("python", OLDER, ids=lambda python: python.parts[-3])
def test_an_older_python_is_refused(python: Path, top: Path) -> None:
    for command in (
        [top / "bin" / "rpcsys-server", "--key", "k"],
        ["sh", top / "install.sh", "--root", "/tmp", "--key", "k"],
    ):
        done = run(python, *command)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "3.8 or later is needed" in done.stderr


def test_a_missing_python_is_reported(top: Path) -> None:
    done = run("no-python", top / "bin" / "rpcsys-server")
    assert done.returncode == 1
    assert "there is no no-python here; install Python 3.8" in done.stderr


@pytest.mark.parametrize(
    "use", ["rpcsys.aio", "rpcsys.graph", "rpcsys.lab", "rpcsys.module.export_library", "rpcsys.module.Sources"]
)
def test_a_part_that_is_not_packed_is_an_error_with_advice(use: str, top: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(top / 'python')!r}); import rpcsys; {use}"
    done = run(sys.executable, sys.executable, "-I", "-S", "-c", code)
    assert "is no part of the device runtime; type: python3 -m pip" in done.stderr.splitlines()[-1]
