"""Lean source is the same program, line for line."""

from __future__ import annotations

import ast
import symtable
from pathlib import Path

import cloudpickle.cloudpickle
import pytest

from rpcsys.pack import tier
from rpcsys.pack.lean import lean

THIRD_PARTY = {file.name: file for file in Path(cloudpickle.cloudpickle.__file__).parent.glob("*.py")}
FILES = {**tier.files(), **THIRD_PARTY}


class Plain(ast.NodeTransformer):
    """A program without what may go: docstrings, assertions, annotations but those of classes, names of types."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(getattr(node, "body", None), list):
            node.body = [each for each in node.body if not self.is_idle(each)] or [ast.Pass()]
        return super().generic_visit(node)

    def is_idle(self, node: ast.stmt) -> bool:
        prose = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        return (
            (prose and node.value.value is not Ellipsis)
            or isinstance(node, ast.Assert)
            or ast.unparse(node).startswith(("if TYPE_CHECKING:", "@overload"))
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


def plain(source: str) -> ast.Module:
    return ast.fix_missing_locations(Plain().visit(ast.parse(source)))


def give_names_of(ours: ast.AST, theirs: ast.AST) -> None:
    """Give variables of functions the names they have in ``ours``; fail where that is not one for one."""
    if isinstance(ours, (ast.FunctionDef, ast.AsyncFunctionDef)):
        both = zip(ast.walk(ours), ast.walk(theirs), strict=True)
        names = [(mine, other) for mine, other in both if isinstance(mine, ast.Name)]
        pairs = {(mine.id, other.id) for mine, other in names}
        assert len(pairs) == len({mine for mine, _ in pairs}) == len({other for _, other in pairs})
        arguments = {node.arg for node in ast.walk(ours) if isinstance(node, ast.arg)}
        assert not any({mine, other} & arguments for mine, other in pairs if mine != other)
        for mine, other in names:
            other.id = mine.id
    else:
        for mine, other in zip(ast.iter_child_nodes(ours), ast.iter_child_nodes(theirs), strict=True):
            give_names_of(mine, other)


def from_outside(program: ast.Module) -> set[str]:
    """What its functions take from their module and from Python."""

    def found(table: symtable.SymbolTable) -> set[str]:
        names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        return names.union(*map(found, table.get_children()))

    return found(symtable.symtable(ast.unparse(program), "program", "exec"))


@pytest.mark.parametrize("name", FILES)
def test_is_the_same_program_on_the_same_lines(name: str) -> None:
    source = FILES[name].read_text(encoding="utf-8")
    text = lean(source)
    wanted, have = plain(source), plain(text)
    assert from_outside(have) == from_outside(wanted)
    give_names_of(wanted, have)
    assert ast.dump(have) == ast.dump(wanted)
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
        ("def f(a):\n    found = a\n    return found\n", "def f(a):\n b = a\n return b\n"),
        ("def f():\n    found = f'{found}'\n", "def f():\n found = f'{found}'\n"),
        ("def f():\n    found = locals()\n", "def f():\n found = locals()\n"),
        ("def f():\n    global found\n    found = 1\n", "def f():\n global found\n found = 1\n"),
        ("found = 1\ndef f():\n    found = 2\n", "found = 1\ndef f():\n found = 2\n"),
        ("def f(xs):\n    return [each for each in xs]\n", "def f(xs):\n return [a for a in xs]\n"),
        ("def g():\n    list = a = 1\n", "def g():\n list = a = 1\n"),
        ('def f():\n    """Why."""\n    assert f\n', "def f():\n\n 0\n"),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\nx = 1\n",
            "\n\n\nx = 1\n",
        ),
        ("@overload\ndef f(x: int): ...\ndef f(x): return x\n", "\n\ndef f(x): return x\n"),
    ],
)
def test_by_example(source: str, wanted: str) -> None:
    assert lean(source) == wanted


def test_what_is_no_python() -> None:
    with pytest.raises(SyntaxError):
        lean("def f(:\n")
