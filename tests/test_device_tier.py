"""The device tier runs on a bare board: the standard library alone, Python 3.8 and later, no asyncio."""

from __future__ import annotations

import ast
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from tests.device_files import ROOT, device_files, entries, staying
from tests.native import FUNCTIONS, compiled
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


SERVE = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("rpcsys.server", run_name="__main__", alter_sys=True)
"""

SESSION = """
import array, json, sys
sys.path.insert(0, sys.argv[1])
import rpcsys
with rpcsys.connect("127.0.0.1", int(sys.argv[2]), key="board") as session:
    echo = session.get_function("testing.echo")
    grid = memoryview(array.array("f", [1, 2, 3, 4, 5, 6])).cast("B").cast("f", [2, 3])
    back = echo(grid)
    large = memoryview(bytearray(range(256)) * (3 << 12))
    kept = session.array(grid)
    session.upload(b"of the board", "file.txt")
    native = session.load_module(sys.argv[3])
    ones = array.array("f", [1.0]) * 32
    print(json.dumps({
        "number": echo(41),
        "dtype": back.dtype,
        "shape": back.shape,
        "items": back.tolist(),
        "large": bytes(echo(large).data) == bytes(large),
        "many": [future.result() for future in [echo.submit(i) for i in range(100)]] == list(range(100)),
        "kept": kept.get().tolist(),
        "file": bytes(session.download("file.txt")).decode(),
        "native": native["double_it"](ones, rpcsys.empty(32, "float32")).tolist() == [2.0] * 32,
        "python": session.info["capabilities"]["python"],
        "numpy": session.info["capabilities"]["numpy"],
        "foreign": [name for name in ("asyncio", "numpy") if name in sys.modules],
    }))
"""

# Keeps every fourth frame, every fourth array and every fourth part of one, and what it has kept must stay as it was.
KEEPING = """
import json, sys
sys.path.insert(0, sys.argv[1])
from rpcsys.wire.frames import CALL, encode
from rpcsys.wire.reader import FrameReader
from rpcsys.wire.tensor import Tensor
reader, kept, last, again = FrameReader(), [], None, 0
for number in range(400):
    sent = b"".join(encode(CALL, number, {"args": [Tensor("uint8", [999], bytes([number % 256]) * 999)]}))
    def fill(place, count, flags):
        place[:len(sent)] = sent
        return len(sent)
    frame = reader.read(fill)
    again += id(frame) == last
    last = id(frame)
    keep = [lambda: None, lambda: frame, lambda: frame.buffers[0], lambda: frame.buffers[0][7:]][number % 4]()
    if keep is not None:
        kept.append((number, keep))
    del frame, keep
changed = [
    number for number, what in kept
    if set(bytes(getattr(what, "buffers", [what])[0])) != {number % 256} or getattr(what, "call_id", number) != number
]
print(json.dumps({"changed": changed, "again": again > 100, "kept": len(kept)}))
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
    """The modules that every board can import."""
    names = [".".join(file.with_suffix("").parts) for file, needs in device_files().items() if not needs]
    return [name.removesuffix(".__init__") for name in names]


@cache
def imported_by(file: Path) -> frozenset[str]:
    """The modules that importing a file imports."""
    names: set[str] = set()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def packages_of(file: Path, ours: Collection[Path]) -> set[str]:
    """The outside packages that a file needs: its own imports, and those of its imports among ``ours``."""
    names: set[str] = set()
    todo, seen = [file], {file}
    while todo:
        found = imported_by(todo.pop())
        names |= {name.split(".")[0] for name in found}
        inner = {Path(*name.split(".")).with_suffix(".py") for name in found}.intersection(ours) - seen
        todo += inner
        seen |= inner
    return names - set(sys.stdlib_module_names) - {"rpcsys"}


def bare(python: str, *args: object, timeout: float = 60) -> str:
    """Run isolated Python without site-packages; its standard output. A failure shows its stderr."""
    done = subprocess.run(
        [python, "-I", "-S", *map(str, args)], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_path_of_the_list_exists() -> None:
    assert [entry for entry in {*entries(), *staying()} if not (ROOT / entry).exists()] == []


def test_a_file_imports_only_its_listed_packages() -> None:
    files = device_files()
    for file, needs in files.items():
        assert packages_of(file, files.keys()) == needs, file


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
def test_an_old_python_names_the_version_needed(version: str, board: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import rpcsys\ntry: rpcsys.lab\nexcept ImportError as e: print(e)"
    )
    assert "needs Python 3.10" in bare(pythons()[version], "-c", code, board)


@pytest.mark.parametrize("version", pythons())
def test_memory_is_reused_only_without_references(version: str, board: Path) -> None:
    """Reference counts differ between Pythons."""
    seen = json.loads(bare(pythons()[version], "-c", KEEPING, board))
    assert seen == {"changed": [], "again": True, "kept": 300}


@contextlib.contextmanager
def serving(python: str, board: Path, cwd: Path) -> Iterator[int]:
    """A server of the copied tree under a bare interpreter; its port. It must end with exit status 0."""
    command = [python, "-I", "-S", "-c", SERVE, str(board), "--host", "127.0.0.1", "--port", "0", "--key", "board"]
    with (cwd / "log").open("w+") as log:
        server = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line, (cwd / "log").read_text()
            yield json.loads(line)["port"]
            server.terminate()
            assert server.wait(20) == 0, (cwd / "log").read_text()
        finally:
            server.kill()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()


@pytest.mark.live
@pytest.mark.parametrize("version", pythons())
def test_serves_and_uses_a_session(version: str, board: Path, tmp_path: Path) -> None:
    """The real server and the client's core, both bare, and this Python's client with numpy beside it."""
    library = compiled(FUNCTIONS, tmp_path / "functions.so", "-mavx")
    with serving(pythons()[version], board, tmp_path) as port:
        seen = json.loads(bare(pythons()[version], "-c", SESSION, board, port, library))
        with rpcsys.connect("127.0.0.1", port, key="board") as session:
            desk = session.get_function("testing.echo")(np.arange(3.0))
    assert desk.tolist() == [0, 1, 2]
    assert seen == {
        "number": 41,
        "dtype": "float32",
        "shape": [2, 3],
        "items": [[1, 2, 3], [4, 5, 6]],
        "large": True,
        "many": True,
        "kept": [[1, 2, 3], [4, 5, 6]],
        "file": "of the board",
        "native": True,
        "python": version,
        "numpy": False,
        "foreign": [],
    }
