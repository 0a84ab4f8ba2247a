"""Boards get the program that was tested, each statement at its line."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import cloudpickle.cloudpickle
import pytest

from rpcsys import data
from rpcsys.pack import build
from rpcsys.pack.source import ROOT, blanked
from rpcsys.pack.source import device_files as packed_files
from tests.device_files import device_files

THIRD_PARTY = Path(cloudpickle.cloudpickle.__file__).parent.glob("*.py")
OF_BOARDS = data.folder("packaging").rglob("*.py")
PACKED = {name: file for name, file in packed_files().items() if file.suffix == ".py"}
FILES = {**PACKED, **{file.name: file for file in THIRD_PARTY}, **{str(file): file for file in OF_BOARDS}}

RAISE = """
import json, sys, traceback
from rpcsys.errors import ConfigError
from rpcsys.server.config import parse
try:
    parse(["--key", "k", "--cpus", "0-x"])
except ConfigError as error:
    print(json.dumps([(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)[1:]]))
"""


def is_docstring(node: ast.AST) -> bool:
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant and isinstance(node.value.value, str)


FOR_TYPES = ("collections.abc", "types", "typing")


class Plain(ast.NodeTransformer):
    """A program without docstrings, annotations, imports of types, and what else only type checkers read."""

    def __init__(self) -> None:
        self.attributes: set[ast.AST] = set()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(getattr(node, "body", None), list):
            node.body = [each for each in node.body if not is_docstring(each)] or [ast.Pass()]
        return super().generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.attributes.update(node.body)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node in self.attributes and "ClassVar" not in ast.unparse(node.annotation):
            node.annotation = ast.Name("object")
        if node in self.attributes or node.value is None or node.annotation.end_lineno != node.lineno:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module in ("__future__", *FOR_TYPES) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def plain(source: str) -> ast.AST:
    return Plain().visit(ast.parse(source))


def types(source: str) -> set[str]:
    """The names that a program imports for annotations."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {
        each.name for node in imports if node.module in ("typing", "collections.abc", "types") for each in node.names
    }


def lines(program: ast.AST) -> list[int]:
    """The lines of all nodes, without the ``pass`` that replaces a docstring."""
    nodes = [node for node in ast.walk(program) if not isinstance(node, ast.Pass)]
    return [node.lineno for node in nodes if hasattr(node, "lineno")]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_program_stays_the_same_on_the_same_lines(name: str) -> None:
    source = FILES[name].read_text(encoding="utf-8")
    text = blanked(source)
    assert ast.dump(plain(text)) == ast.dump(plain(source))
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert types(source) & used <= types(text)
    assert lines(plain(text)) == lines(plain(source))
    assert not [node for node in ast.walk(ast.parse(text)) if is_docstring(node)]
    compile(text, name, "exec")


def test_a_traceback_names_the_lines_of_the_repository(tmp_path: Path) -> None:
    """For any exception on a board: here a flag of the server's."""
    for name, content in build._python().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    packed, ours = (frames(folder) for folder in (tmp_path / "python", ROOT))
    assert packed == ours
    file, line = packed[-1]
    assert (ROOT / file).read_text().splitlines()[line - 1].strip().startswith("raise ")


def frames(root: Path) -> list[tuple[str, int]]:
    """Files below ``root`` and their lines in the traceback of `RAISE`, run with the files there."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    run = subprocess.run(
        [sys.executable, "-c", RAISE], env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    return [(Path(file).relative_to(root).as_posix(), line) for file, line in json.loads(run.stdout)]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("", ""),
        ("#!/usr/bin/python3\n# why\nx = 1  # one\n", "#!/usr/bin/python3\n\nx=1\n"),
        ('"""Two\nlines."""\nx = "#"\n', '\n\nx="#"\n'),
        ('def f(x: int, *y: "str", z: int = 3) -> int:\n    """Says ä."""\n', "def f(x,*y,z=3):\n pass\n"),
        ("def f(\n    x: Dict[\n        str, int\n    ],\n): return x\n", "def f(\nx\n\n,\n): return x\n"),
        ("x: int = 1\nif x:\n    y = '''a\\n    b'''\n", "x=1\nif x:\n y='''a\\n    b'''\n"),
        (
            "class C:\n    x: int = 1\n\n    def f(self):\n        self.y: int = 2\n        z: int\n",
            "class C:\n x: object=1\n\n def f(self):\n  self.y=2\n  z: int\n",
        ),
        (
            "if TYPE_CHECKING:\n    import a  # why\n    import b\nelse:\n    c = 1\n",
            "if TYPE_CHECKING:\n pass\n\nelse:\n c=1\n",
        ),
        ("if x:\n    y = '''a\n    b'''\n", "if x:\n y='''a\n    b'''\n"),
        ('x = "ä"; "prose"  # ö\n', 'x="ä";\n'),
        ("class A:\n    x: int = 1  # kept\n    '''why'''\n", "class A:\n x: object=1\n\n"),
        ("class A:\n    '''why'''\n    '''more'''\n", "class A:\n\n pass\n"),
        ("def f(x: (int)) -> (int): return x\n", "def f(x: (int)) -> (int): return x\n"),
        ("x = 1\n# last", "x=1\n\n"),
        ("if x:\n    y = f(1,\n      [2,\n    '''a\n  b'''])\n    y\n", "if x:\n y=f(1,\n[2,\n'''a\n  b'''])\n y\n"),
        ('f(a == d, b = (1, ), c= ", = ")\n', 'f(a == d,b=(1,),c=", = ")\n'),
        ("f'{a = }, {b, c}', f''\n", "f'{a = }, {b, c}',f''\n"),
        ('def f():\n    """Why."""\n    assert f\n', "def f():\n\n assert f\n"),
    ],
)
def test_by_example(source: str, wanted: str) -> None:
    assert blanked(source) == wanted


def test_invalid_python_is_an_error() -> None:
    with pytest.raises(SyntaxError):
        blanked("def f(:\n")


def test_packager_and_tests_read_the_same_list() -> None:
    assert sorted(PACKED) == sorted(map(str, device_files()))
    assert "rpcsys/module/toolchain.py" not in packed_files()
