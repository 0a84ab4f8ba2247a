"""Lean source is the same program, line for line."""

from __future__ import annotations

import ast
from pathlib import Path

import cloudpickle.cloudpickle
import pytest

from rpcsys.pack import tier
from rpcsys.pack.lean import lean

THIRD_PARTY = {file.name: file for file in Path(cloudpickle.cloudpickle.__file__).parent.glob("*.py")}
FILES = {**tier.files(), **THIRD_PARTY}


class Plain(ast.NodeTransformer):
    """A program without what may go: docstrings, annotations but those of classes, names of types."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(getattr(node, "body", None), list):
            node.body = [each for each in node.body if not self.is_prose(each)]
        return super().generic_visit(node)

    def is_prose(self, node: ast.stmt) -> bool:
        return (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and node.value.value is not Ellipsis
        )

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        fields = {index: each for index, each in enumerate(node.body) if isinstance(each, ast.AnnAssign)}
        node.body = [ast.Pass() if index in fields else each for index, each in enumerate(node.body)]
        node.decorator_list += [ast.Constant(ast.dump(each)) for each in fields.values()]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return self.generic_visit(ast.Assign([node.target], node.value) if node.value else node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "typing" else node


def stripped(source: str) -> str:
    return ast.dump(Plain().visit(ast.parse(source)))


@pytest.mark.parametrize("name", FILES)
def test_is_the_same_program_on_the_same_lines(name: str) -> None:
    source = FILES[name].read_text(encoding="utf-8")
    text = lean(source)
    assert stripped(text) == stripped(source)
    compile(text, name, "exec")
    assert len(text.splitlines()) == len(source.splitlines())


def test_halves_the_tier() -> None:
    sources = [file.read_text(encoding="utf-8") for file in tier.files().values()]
    assert sum(len(lean(source).encode()) for source in sources) < 0.75 * sum(
        len(source) for source in sources
    )


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("", ""),
        ("#!/usr/bin/python3\n# why\nx = 1  # one\n", "#!/usr/bin/python3\n\nx = 1\n"),
        ('"""Two\nlines."""\nx = "#"\n', '\n\nx = "#"\n'),
        (
            'def f(x: int, *y: "str", z: int = 3) -> int:\n    """Says ä."""\n',
            "def f(x, *y, z = 3):\n 0\n",
        ),
        ("x: int = 1\nif x:\n    y = '''a\\n    b'''\n", "x = 1\nif x:\n y = '''a\\n    b'''\n"),
        ("from typing import Any, List\nx: Any = [List]\n", "from typing import List\nx = [List]\n"),
        ('x = "ä"; "prose"  # ö\n', 'x = "ä";\n'),
        ("class A:\n    x: int = 1  # kept\n    '''why'''\n", "class A:\n x: int = 1\n\n"),
        ("def f(x: (int)) -> (int): return x\n", "def f(x: (int)) -> (int): return x\n"),
        ("x = 1\n# last", "x = 1\n\n"),
    ],
)
def test_by_example(source: str, wanted: str) -> None:
    assert lean(source) == wanted


def test_what_is_no_python() -> None:
    with pytest.raises(SyntaxError):
        lean("def f(:\n")
