"""The device tier runs on a bare board: the standard library alone, Python 3.8 and later, no asyncio."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.device_files import ROOT, device_files, entries
from tests.pythons import pythons

IMPORT_ALL = """
import importlib, json, os, sys
tree, names = sys.argv[1], sys.argv[2:]
sys.path.insert(0, tree)
before = set(sys.modules)
for name in names:
    importlib.import_module(name)
home = os.path.dirname(os.__file__)
def foreign(module):
    file = getattr(module, "__file__", None)
    return file is not None and not file.startswith((tree, home)) or "site-packages" in (file or "")
print(json.dumps({
    "foreign": sorted(name for name, module in sys.modules.items() if foreign(module)),
    "asyncio": sorted(name for name in sys.modules if name.split(".")[0] == "asyncio"),
    "loaded": sorted(name for name in set(sys.modules) - before if name.split(".")[0] == "rpcsys"),
}))
"""


@pytest.fixture(scope="session")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the device tier and nothing else."""
    tree = tmp_path_factory.mktemp("board")
    for file in device_files():
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tree / file)
    return tree


def modules() -> list[str]:
    names = [".".join(file.with_suffix("").parts) for file in device_files()]
    return [name.removesuffix(".__init__") for name in names]


def bare(python: str, *args: str | Path, timeout: float = 60) -> str:
    """Run isolated Python without site-packages; its standard output. A failure shows its stderr."""
    done = subprocess.run(
        [python, "-I", "-S", *map(str, args)], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_path_of_the_list_exists() -> None:
    assert [entry for entry in entries() if not (ROOT / entry).exists()] == []


@pytest.mark.parametrize("version", pythons())
def test_imports_the_standard_library_alone(version: str, board: Path) -> None:
    seen = json.loads(bare(pythons()[version], "-c", IMPORT_ALL, board, *modules()))
    assert seen["foreign"] == []
    assert seen["asyncio"] == []
    assert set(modules()) <= set(seen["loaded"])


@pytest.mark.parametrize("version", pythons())
def test_import_rpcsys_loads_nothing_else(version: str, board: Path) -> None:
    seen = json.loads(bare(pythons()[version], "-c", IMPORT_ALL, board, "rpcsys"))
    assert seen["loaded"] == ["rpcsys"]


@pytest.mark.parametrize("version", [v for v in pythons() if v in ("3.8", "3.9")])
def test_an_old_python_is_told_what_it_lacks(version: str, board: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import rpcsys\ntry: rpcsys.lab\nexcept ImportError as e: print(e)"
    assert "needs Python 3.10" in bare(pythons()[version], "-c", code, board)
