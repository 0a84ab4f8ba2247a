"""Every command works from an installed wheel, in an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.device_files import ROOT
from tests.pythons import pythons

LEASE = """
import json, rpcsys
with rpcsys.lab.Lab({"cpu": 1}) as lab:
    with lab.connect() as tracker, tracker.request("cpu", wait_timeout=20) as session:
        print(json.dumps([rpcsys.__file__, session.get_function("testing.echo")(41)]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder)], cwd=ROOT)
    (path,) = folder.glob("rpcsys-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment's bin folder: the wheel, and this environment's other packages (not its rpcsys)."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(home)], cwd=home.parent)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    run([*pip, str(wheel)], cwd=home.parent)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return home / "bin"


def run(command: list[str], cwd: Path, timeout: float = 100) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RPCSYS", "TVM"))}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_carries_code_data_and_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"rpcsys"}
    assert {"rpcsys/py.typed", "rpcsys/_data/packaging/device-files.txt"} <= set(names)
    assert {"rpcsys/_data/toolchains/cross.cmake", "rpcsys/_data/toolchains/aarch64-linux-gnu.cmake"} <= set(names)
    assert {"rpcsys/_data/systemd/rpcsys-tracker.service", "rpcsys/_data/systemd/tracker.environment"} <= set(names)
    for name in ("prometheus-rules.yml", "grafana-dashboard.json"):
        assert f"rpcsys/_data/docs/monitoring/{name}" in names
    assert {"rpcsys/tracker/page/lab.html", "rpcsys/tracker/page/page.js"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "rpcsys --version",
        "rpcsys --help",
        "rpcsys tracker --help",
        "rpcsys server --help",
        "rpcsys query --help",
        "rpcsys run --help",
        "rpcsys demo --help",
        "rpcsys pack --help",
        "query_tracker --help",
        "python -m rpcsys.tracker --help",
        "python -m rpcsys.server --help",
        "python -m rpcsys.query --help",
    ],
)
def test_every_command_starts(command: str, installed: Path, tmp_path: Path) -> None:
    name, *args = command.split()
    assert run([str(installed / name), *args], cwd=tmp_path).strip()


@pytest.mark.live
def test_a_device_is_leased_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    where, echoed = json.loads(run([str(installed / "python"), "-c", LEASE], cwd=tmp_path))
    assert Path(where).is_relative_to(installed.parent)
    assert echoed == 41
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_packs_the_same_archive_as_a_checkout(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("zopfli")
    archives = []
    for rpcsys in (installed / "rpcsys", Path(sysconfig.get_path("scripts")) / "rpcsys"):
        archives.append(tmp_path / f"{len(archives)}.tar.gz")
        run([str(rpcsys), "pack", "--target", "riscv64-linux-gnu", "-o", str(archives[-1])], cwd=tmp_path)
    assert archives[0].read_bytes() == archives[1].read_bytes()


@pytest.mark.parametrize("command", ["main", "query_tracker"])
@pytest.mark.parametrize("version", [version for version in pythons() if version in ("3.8", "3.9")])
def test_a_command_on_an_old_python_names_its_version(version: str, command: str, wheel: Path, tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, sys.argv[1]); from rpcsys.__main__ import {command} as c; sys.exit(c())"
    python = [pythons()[version], "-I", "-S", "-c", code, str(wheel)]
    done = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "needs Python 3.10 or later" in done.stderr
