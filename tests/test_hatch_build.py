"""What is built and published: each installs on every Python, and has the compiled library where that can be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.combinations import usual
from tests.device_files import ROOT
from tests.pythons import pythons

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ASK = "import rpcsys, rpcsys.stream; print(rpcsys.__file__, rpcsys.stream.SPEEDUPS)"
WITHOUT_COMPILER = {"CC": "/bin/false"}
#: Functions that Python 3.9 exports, and that only the limited API of 3.10 or 3.11 has.
EXPORTED_BEFORE = {
    *("PyBuffer_FillInfo", "PyBuffer_Release", "PyObject_CallNoArgs", "PyObject_GetBuffer"),
    *("PyModule_AddType", "PyType_FromModuleAndSpec", "PyType_GetModuleState"),
}
OTHERS = [version for version in pythons() if pythons()[version] != sys.executable]
#: The oldest one, the first one that can use the library, and the newest one.
ENDS = {"3.8", "3.9", [*pythons()][-1]}


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder``, outside of the test run's make and Python."""
    foreign = ("MAKE", "MFLAGS", "PYTHON", "RPCSYS", "CC", "CFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return subprocess.run(
        command, cwd=folder, env={**kept, **variables}, capture_output=True, text=True, timeout=300, check=False
    )


def well(command: list[str], folder: Path, **variables: str) -> str:
    """The output of a command that succeeds."""
    done = run(command, folder, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def fits(version: str) -> bool:
    """Whether that Python can use the library."""
    return tuple(map(int, version.split("."))) >= (3, 9)


def used(python: str, site: Path) -> bool:
    """Whether the rpcsys in ``site`` uses its library."""
    where, answer = well([python, "-c", ASK], site.parent, PYTHONPATH=str(site)).split()
    assert Path(where).is_relative_to(site)
    return answer == "True"


def install(python: str, site: Path, *what: str) -> list[str]:
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--verbose"]
    return [*pip, "--target", str(site), *what]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``make wheels`` fills."""
    folder = tmp_path_factory.mktemp("published")
    words = ["make", "--old-file=.venv/.ready-dev", f"BIN={Path(sys.executable).parent}", "wheels"]
    well([*words, f"WHEELS={folder / 'build'}", f"DIST={folder / 'dist'}"], ROOT)
    return folder / "dist"


@pytest.fixture(scope="module")
def sdist(published: Path) -> Path:
    (path,) = published.glob("*.tar.gz")
    return path


@pytest.fixture
def tree(sdist: Path, tmp_path: Path) -> Path:
    """The unpacked sources."""
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / sdist.name.removesuffix(".tar.gz")


def build(tree: Path, kind: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call the build backend as pip does; ``kind`` is wheel or editable. What it makes is in ``tree/made``."""
    (tree / "made").mkdir(exist_ok=True)
    return run([sys.executable, "-c", f"import hatchling.build as b; b.build_{kind}('made')"], tree, **variables)


def test_wheels_for_two_processors_and_a_pure_one_are_published(published: Path) -> None:
    tags = sorted(path.name.split("-", 2)[2] for path in published.glob("*.whl"))
    assert tags == [
        "cp39-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
        "cp39-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "py3-none-any.whl",
    ]


def test_the_library_uses_nothing_that_python_3_9_does_not_export(published: Path) -> None:
    audit = [str(Path(sys.executable).with_name("abi3audit")), "--report", *map(str, published.glob("*abi3*.whl"))]
    report = json.loads(run(audit, published).stdout)
    results = [each["result"] for spec in report["specs"].values() for each in spec["wheel"]]
    assert [result["non_abi3_symbols"] for result in results] == [[], []]
    assert {result["baseline"] for result in results} == {"3.9"}
    assert {name for result in results for name in result["future_abi3_objects"]} <= EXPORTED_BEFORE


@pytest.mark.parametrize("version", usual(pythons(), ENDS.__contains__))
def test_pip_chooses_a_wheel_that_works(version: str, published: Path, tmp_path: Path) -> None:
    python, site = pythons()[version], tmp_path / "site"
    well(install(python, site, "--no-index", "--find-links", str(published), "rpcsys"), tmp_path)
    assert used(python, site) is fits(version)


@pytest.mark.parametrize(
    ("variables", "works"), [({}, True), (WITHOUT_COMPILER, False), ({"RPCSYS_SPEEDUPS": "0"}, False)]
)
def test_the_sources_install_offline(variables: dict[str, str], works: bool, sdist: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    said = well(install(sys.executable, site, "--no-index", "--no-build-isolation", str(sdist)), tmp_path, **variables)
    assert used(sys.executable, site) is works
    warned = [line.strip() for line in said.splitlines() if "without its speedups" in line]
    assert warned == (["rpcsys is built without its speedups: /bin/false failed"] if "CC" in variables else [])


@pytest.mark.parametrize("version", usual(OTHERS, ENDS.__contains__))
def test_the_sources_install_on_other_pythons(version: str, sdist: Path, tmp_path: Path) -> None:
    python, site = pythons()[version], tmp_path / "site"
    well(install(python, site, str(sdist)), tmp_path)
    assert used(python, site) is fits(version)


def test_a_release_without_a_compiler_is_an_error(tree: Path) -> None:
    done = build(tree, "wheel", RPCSYS_SPEEDUPS="1", CC="no-compiler")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["rpcsys.speedups: no-compiler: No such file or directory"]
    done = build(tree, "wheel", RPCSYS_SPEEDUPS="README.md")
    assert done.stderr.splitlines() == [
        "rpcsys.speedups: RPCSYS_SPEEDUPS=README.md is no library for a processor that is known here"
    ]
    (tree / "temporary").mkdir()
    done = build(tree, "wheel", RPCSYS_SPEEDUPS="no-file", TMPDIR=str(tree / "temporary"))
    assert done.stderr.splitlines() == ["rpcsys.speedups: RPCSYS_SPEEDUPS=no-file: No such file or directory"]
    assert list((tree / "temporary").iterdir()) == []


def test_the_compiler_has_nothing_to_say(tree: Path) -> None:
    done = build(tree, "wheel", RPCSYS_SPEEDUPS="1", CFLAGS="-Werror")
    assert done.returncode == 0, done.stderr


def test_an_editable_installation_has_the_library_in_the_tree(tree: Path) -> None:
    assert build(tree, "editable").returncode == 0
    assert used(sys.executable, tree)
    assert build(tree, "editable", CFLAGS="-O0 -g").returncode == 0
    (library,) = (tree / "rpcsys").glob("speedups*.so")
    assert b".debug_info" in library.read_bytes()
    assert build(tree, "editable", RPCSYS_SPEEDUPS="0").returncode == 0
    assert not used(sys.executable, tree), "an older library is gone"
    (wheel,) = (tree / "made").glob("*.whl")
    assert wheel.name.endswith("py3-none-any.whl")


def test_a_library_by_any_name_is_installed_under_its_own(tree: Path) -> None:
    assert build(tree, "editable").returncode == 0
    (library,) = (tree / "rpcsys").glob("speedups*.so")
    file = library.rename(tree / "other.so")
    assert build(tree, "editable", RPCSYS_SPEEDUPS=str(file)).returncode == 0
    assert used(sys.executable, tree)


def test_the_library_in_a_tree_stays_out_of_a_pure_wheel(tree: Path) -> None:
    assert build(tree, "editable").returncode == 0
    (made,) = (tree / "made").glob("*.whl")
    made.unlink()
    assert build(tree, "wheel", RPCSYS_SPEEDUPS="0").returncode == 0
    (made,) = (tree / "made").glob("*.whl")
    assert not [name for name in zipfile.ZipFile(made).namelist() if name.endswith(".so")]
