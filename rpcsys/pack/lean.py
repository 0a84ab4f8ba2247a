"""Source without what only readers and type checkers need, every line at its number.

Comments, docstrings, most annotations and the names that only they use go, and so do three of four spaces
of indentation: a third of the archive's bytes. A traceback from a board names the lines of the repository
all the same. Annotations of a class stay: dataclasses and named tuples are made of them.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator

Place = tuple[int, int]
"""A line's index and a place in it, in bytes."""
Cut = tuple[Place, Place, str]
"""From where to where, and what stands there instead."""


def lean(source: str) -> str:
    """``source`` as the same program without prose. Raises SyntaxError for what is no Python."""
    return _indented_by_one(_cut(_cut(source, _explanations), _unused_imports))


def _cut(source: str, find: Callable[[str, list[bytes]], Iterable[Cut]]) -> str:
    lines = [line.encode() for line in source.splitlines()]
    for (first, start), (last, end), instead in sorted(find(source, lines), reverse=True):
        tail = lines[last][end:]
        lines[first : last + 1] = [lines[first][:start] + instead.encode()] + [b""] * (last - first)
        lines[last] += tail
    return "".join(line.decode().rstrip() + "\n" for line in lines)


def _explanations(source: str, lines: list[bytes]) -> Iterator[Cut]:
    tree = ast.parse(source)
    fields = {id(each) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.body}
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
    """Statements below ``node`` that are nothing but a string; ``0`` where a body would be empty."""
    body = getattr(node, "body", None)
    if isinstance(body, list):
        for each in body:
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield _start(each), _end(each), "0" if len(body) == 1 else ""


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
