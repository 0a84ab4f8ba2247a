"""The Python code for boards: the device tier (packaging/device-files.txt), without parts that only readers need."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import rpcsys
from rpcsys import data

#: The folder that the list's paths are relative to: the one that contains ``rpcsys``.
ROOT = Path(rpcsys.__file__).resolve().parent.parent
#: Line index and byte offset of the first byte and behind the last; the bytes that replace them.
Span = tuple[tuple[int, int], tuple[int, int], bytes]


def device_files() -> dict[str, Path]:
    """Every file of the device tier by its path from `ROOT`."""
    text = (data.folder("packaging") / "device-files.txt").read_text(encoding="utf-8")
    lines = [line for line in (line.split("#")[0].strip() for line in text.splitlines()) if line]
    staying = {line.removesuffix(" stays") for line in lines if line.endswith(" stays")}
    paths = [ROOT / line.partition(" needs ")[0] for line in lines if not line.endswith(" stays")]
    files = (file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path]))
    found = {file.relative_to(ROOT).as_posix(): file for file in files}
    return {name: file for name, file in found.items() if name not in staying}


def blanked(source: str) -> str:
    """``source`` without docstrings, comments and what only type checkers read, with one space for each indentation.

    Annotations of attributes in classes stay: dataclasses are made from these.
    Every statement stays at its line, with its names: a traceback from a board names the lines of the repository.
    Raises SyntaxError if it is not Python.
    """
    lines = [line.encode() for line in source.splitlines()]
    for (first, start), (last, end), instead in sorted(_spans(source, lines), reverse=True):
        tail = lines[last][end:]
        lines[first : last + 1] = [lines[first][:start] + instead] + [b""] * (last - first)
        lines[last] += tail
    return _indented_by_one("".join(line.decode().rstrip() + "\n" for line in lines))


def _spans(source: str, lines: list[bytes]) -> Iterator[Span]:
    tree = ast.parse(source)
    attributes = {each for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.body}
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            yield from _docstrings(body)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield _ends(node.body[0])[0], _ends(node.body[-1])[1], b"pass"
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield from _annotation(b": ", node.annotation, lines)
        elif isinstance(node, ast.AnnAssign) and node.value is not None and node not in attributes:
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
    """Replace four spaces by one at the beginning of each line, but not inside of a string."""
    inside: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        inside.update(range(token.start[0] + 1, token.end[0] + 1))
    lines = [
        line if row in inside else " " * ((len(line) - len(line.lstrip(" "))) // 4) + line.lstrip(" ")
        for row, line in enumerate(source.splitlines(), 1)
    ]
    return "".join(line + "\n" for line in lines)
