"""Source without what only readers and type checkers need, every line at its number.

Comments, docstrings, assertions, most annotations and the names that only they use go, and so do three of four spaces
of indentation; variables of functions get names of a letter or two: four tenths of the archive's bytes. A traceback from
a board names the lines of the repository all the same. Annotations of a class stay: dataclasses and named tuples
are made of them.
"""

from __future__ import annotations

import ast
import builtins
import io
import itertools
import keyword
import re
import string
import tokenize
from collections.abc import Callable, Iterable, Iterator

#: What looks at variables by their names, and what makes a name mean another thing than around it.
_SEEN_BY_NAME = {"locals", "vars", "eval", "exec", "dir"}
_SCOPES_OF_THEIR_OWN = (ast.ClassDef, ast.Global, ast.Nonlocal)

Place = tuple[int, int]
"""A line's index and a place in it, in bytes."""
Cut = tuple[Place, Place, str]
"""From where to where, and what stands there instead."""


def lean(source: str) -> str:
    """``source`` as the same program without prose. Raises SyntaxError for what is no Python."""
    return _indented_by_one(_cut(_cut(_cut(source, _explanations), _unused_imports), _long_names))


def _cut(source: str, find: Callable[[str, list[bytes]], Iterable[Cut]]) -> str:
    lines = [line.encode() for line in source.splitlines()]
    for (first, start), (last, end), instead in sorted(find(source, lines), reverse=True):
        tail = lines[last][end:]
        lines[first : last + 1] = [lines[first][:start] + instead.encode()] + [b""] * (last - first)
        lines[last] += tail
    return "".join(line.decode().rstrip() + "\n" for line in lines)


def _explanations(source: str, lines: list[bytes]) -> Iterator[Cut]:
    tree = ast.parse(source)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(each) for node in classes for each in node.body if isinstance(each, ast.AnnAssign)}
    for node in ast.walk(tree):
        yield from _prose(node)
        if id(node) not in fields:
            yield from _annotations(node, lines)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            row = token.start[0] - 1
            yield (row, len(token.line[: token.start[1]].encode())), (row, len(lines[row])), ""


def _unused_imports(source: str, lines: list[bytes]) -> Iterator[Cut]:
    """What a module takes from ``typing`` and no longer uses."""
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {word for node in ast.walk(tree) if isinstance(node, ast.Constant) for word in _words(node.value)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "typing":
            kept = [alias for alias in node.names if (alias.asname or alias.name) in used]
            yield (
                _start(node),
                _end(node),
                f"from typing import {', '.join(map(ast.unparse, kept))}" if kept else "",
            )


def _long_names(source: str, lines: list[bytes]) -> Iterator[Cut]:
    """The variables of functions. A name that stands for the same in a whole function does so by any other."""
    tree = ast.parse(source)
    outside = _bound_outside(tree) | set(dir(builtins))
    for function in _functions(tree):
        shorter = _shorter(function, outside)
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in shorter:
                yield _start(node), _end(node), shorter[node.id]


def _functions(node: ast.AST) -> Iterator[ast.AST]:
    """Those that are in no other."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
        else:
            yield from _functions(child)


def _bound_outside(node: ast.AST) -> set[str]:
    """Names of the module and of its classes, and whatever else stands outside of functions: more do no harm."""
    names = {alias.asname or alias.name.split(".")[0] for alias in _aliases(node)} | _own_name(node)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return names
    if isinstance(node, ast.Name):
        names.add(node.id)
    return names.union(*map(_bound_outside, ast.iter_child_nodes(node)))


def _shorter(function: ast.AST, outside: set[str]) -> dict[str, str]:
    """New names for its variables. Those of arguments are the callers' too, and some are not only names in the tree."""
    nodes = list(ast.walk(function))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    if names & _SEEN_BY_NAME or any(isinstance(node, _SCOPES_OF_THEIR_OWN) for node in nodes):
        return {}
    fixed = {node.arg for node in nodes if isinstance(node, ast.arg)} | outside
    for node in nodes:
        fixed |= _own_name(node)  # of a function inside, or of an exception
        fixed.update(alias.asname or alias.name.split(".")[0] for alias in _aliases(node))
        if isinstance(node, ast.JoinedStr):  # before Python 3.12 it does not say where in the text they stand
            fixed.update(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    free = (name for name in _short_names() if name not in names | fixed)
    return {name: next(free) for name in sorted(stored - fixed) if len(name) > 1}


def _aliases(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else []


def _own_name(node: ast.AST) -> set[str]:
    return set(filter(None, [getattr(node, "name", None)]))


def _short_names() -> Iterator[str]:
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            if not keyword.iskeyword("".join(letters)):
                yield "".join(letters)


def _words(value: object) -> list[str]:
    """Names in a text: it may be an annotation, or a list of what a module exports."""
    return re.findall(r"\w+", value) if isinstance(value, str) else []


def _indented_by_one(source: str) -> str:
    inside: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        # Strings of several lines, the f-strings of Python 3.12 in their parts: their spaces are their own.
        inside.update(range(token.start[0] + 1, token.end[0] + 1))
    lines = source.splitlines(keepends=True)
    return "".join(
        line if row in inside else " " * ((len(line) - len(line.lstrip(" "))) // 4) + line.lstrip(" ")
        for row, line in enumerate(lines, 1)
    )


def _prose(node: ast.AST) -> Iterator[Cut]:
    """Statements below ``node`` that do nothing for who runs it; ``0`` where a body would be empty."""
    body = getattr(node, "body", None)
    if isinstance(body, list):
        idle = [each for each in body if _is_idle(each)]
        for each in idle:
            needed = len(idle) == len(body) and each is idle[-1]
            yield _first(each), _end(each), "0" if needed else ""


def _is_idle(node: ast.stmt) -> bool:
    """A text, an assertion, an import for types, or a signature of many."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    if isinstance(node, ast.If):
        return _named(node.test, "TYPE_CHECKING") and not node.orelse
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return isinstance(node, ast.Assert) or any(_named(each, "overload") for each in decorators)


def _named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _first(node: ast.stmt) -> Place:
    """Where a statement begins, its decorators among it."""
    decorators = getattr(node, "decorator_list", [])
    return (decorators[0].lineno - 1, decorators[0].col_offset - 1) if decorators else _start(node)


def _annotations(node: ast.AST, lines: list[bytes]) -> Iterator[Cut]:
    """Those that are written as formatters write them; the tree does not hold what stands before them."""
    if isinstance(node, ast.arg) and node.annotation is not None:
        yield from _after(b": ", node.annotation, lines)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
        yield from _after(b" -> ", node.returns, lines)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _after(b": ", node.annotation, lines)


def _after(sign: bytes, annotation: ast.expr, lines: list[bytes]) -> Iterator[Cut]:
    line, place = _start(annotation)
    if lines[line][:place].endswith(sign):
        yield (line, place - len(sign)), _end(annotation), ""


def _start(node: ast.expr | ast.stmt) -> Place:
    return node.lineno - 1, node.col_offset


def _end(node: ast.expr | ast.stmt) -> Place:
    return (node.end_lineno or node.lineno) - 1, node.end_col_offset or 0
