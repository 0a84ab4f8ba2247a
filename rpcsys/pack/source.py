"""The Python code for boards: the device tier (packaging/device-files.txt), without parts that only readers need."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import rpcsys
from rpcsys import data

#: The folder that the list's paths are relative to: the one that contains ``rpcsys``.
ROOT = Path(rpcsys.__file__).resolve().parent.parent
#: Line index and byte offset of the first byte and behind the last; the bytes that replace them.
Span = tuple[tuple[int, int], tuple[int, int], bytes]
_BARE = (",", "=")  # signs that need no spaces beside them
_FOR_TYPES = ("collections.abc", "types", "typing")  # modules of names that mostly occur in annotations


def device_files() -> dict[str, Path]:
    """Every file of the device tier by its path from `ROOT`."""
    text = (data.folder("packaging") / "device-files.txt").read_text(encoding="utf-8")
    lines = [line for line in (line.split("#")[0].strip() for line in text.splitlines()) if line]
    staying = {line.removesuffix(" stays") for line in lines if line.endswith(" stays")}
    paths = [ROOT / line.partition(" needs ")[0] for line in lines if not line.endswith(" stays")]
    files = (file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path]))
    found = {file.relative_to(ROOT).as_posix(): file for file in files}
    return {name: file for name, file in found.items() if name not in staying}


@cache
def blanked(source: str) -> str:
    """``source`` without docstrings, comments and what only type checkers read; indentations are one space each.

    Annotations of attributes in classes stay, as ``object``: dataclasses are made from these.
    Every statement stays at its line, with its names: a traceback from a board names the lines of the repository.
    Raises SyntaxError if it is not Python.
    """
    source = _replaced(source, _spans(source))
    return _indented_by_one(_replaced(source, _unused_imports(source)))


def _replaced(source: str, spans: Iterable[Span]) -> str:
    lines = [line.encode() for line in source.splitlines()]
    for (first, start), (last, end), instead in sorted(spans, reverse=True):
        tail = lines[last][end:]
        lines[first : last + 1] = [lines[first][:start] + instead] + [b""] * (last - first)
        lines[last] += tail
    return "".join(line.decode().rstrip() + "\n" for line in lines)


def _unused_imports(source: str) -> Iterator[Span]:
    """A module's imports for annotations, with the names alone that occur again, and of `annotations` without any."""
    tree = ast.parse(source)
    annotated = any(getattr(node, "annotation", None) or getattr(node, "returns", None) for node in ast.walk(tree))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in _FOR_TYPES:
            names = [each.name for each in node.names if len(re.findall(rf"\b{each.name}\b", source)) > 1]
            yield *_ends(node), f"from {node.module} import {', '.join(names)}".encode() if names else b""
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__" and not annotated:
            yield *_ends(node), b""


def _spans(source: str) -> Iterator[Span]:
    lines, tree = [line.encode() for line in source.splitlines()], ast.parse(source)
    attributes = {each for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.body}
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            yield from _docstrings(body)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield _ends(node.body[0])[0], _ends(node.body[-1])[1], b"pass"
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield from _annotation(b": ", node.annotation, lines)
        elif isinstance(node, ast.AnnAssign) and node in attributes:
            if "ClassVar" not in ast.unparse(node.annotation):
                yield *_ends(node.annotation), b"object"
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            if node.lineno == node.annotation.end_lineno:
                yield from _annotation(b": ", node.annotation, lines)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            yield from _annotation(b" -> ", node.returns, lines)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            row = token.start[0] - 1
            yield (row, len(lines[row]) - len(token.string.encode())), (row, len(lines[row])), b""


def _docstrings(body: list[ast.stmt]) -> Iterator[Span]:
    """Docstrings of a module, class or function, and of attributes; ``pass`` where a body has nothing else."""
    expressions = [each for each in body if isinstance(each, ast.Expr)]
    found = [each for each in expressions if isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)]
    for each in found:
        last = len(found) == len(body) and each is found[-1]
        yield *_ends(each), b"pass" if last else b""


def _annotation(sign: bytes, node: ast.expr, lines: list[bytes]) -> Iterator[Span]:
    """An annotation, as formatters write it, with ``sign`` before it: the syntax tree does not give its position."""
    (row, column), end = _ends(node)
    if lines[row][:column].endswith(sign):
        yield (row, column - len(sign)), end, b""


def _ends(node: ast.expr | ast.stmt) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno - 1, node.col_offset), ((node.end_lineno or 0) - 1, node.end_col_offset or 0)


def _indented_by_one(source: str) -> str:
    """Replace four spaces by one at the beginning of each line, by none within brackets and around commas and ``=``.

    Strings stay as they are.
    """
    before, lines = source.splitlines(), []
    inside: set[int] = set()
    bracketed: set[int] = set()
    needless: set[tuple[int, int]] = set()
    depth = quoted = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        (row, column), (last, _) = token.start, token.end
        inside.update(range(row + 1, last + 1))
        if depth and not before[row - 1][:column].strip():
            bracketed.add(row)
        kind = tokenize.tok_name[token.type]  # from Python 3.12 on, f-strings are several tokens
        quoted += kind.endswith("STRING_START") - kind.endswith("STRING_END")
        if token.string in _BARE and kind == "OP" and not quoted:
            line = before[row - 1]
            needless.update((row - 1, place) for place in (column - 1, column + 1) if line[place : place + 1] == " ")
        if token.type == tokenize.OP:
            depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
    for row, place in sorted(needless, reverse=True):
        before[row] = before[row][:place] + before[row][place + 1 :]
    for row, line in enumerate(before, 1):
        bare = line.lstrip(" ")
        spaces = 0 if row in bracketed else (len(line) - len(bare)) // 4
        lines.append(line if row in inside else " " * spaces + bare)
    return "".join(line + "\n" for line in lines)
