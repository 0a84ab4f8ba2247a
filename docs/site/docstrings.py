"""Docstrings for Sphinx: ours are plain text, and become its reStructuredText here.

In ours, a name or code stands between one or two backticks, an indented block is code, and a section such as
`Attributes` has an underline and lines ``name : meaning``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: The modules of the reference. A name that several have leads to the first.
MODULES = (
    "rpcsys.client", "rpcsys.errors", "rpcsys.aio", "rpcsys.measure", "rpcsys.graph", "rpcsys.module", "rpcsys.lab",
    "rpcsys.server", "rpcsys.tracing", "rpcsys.tvm", "rpcsys",
)  # fmt: skip

_UNDERLINE = re.compile(r"-{3,}")
_ENTRY = re.compile(r"(\S.*?) : (.*)")
_ITEM = re.compile(r"[-*] ")
_LITERAL = re.compile(r"(``.+?``|`[^`]+`)")
_MARK = re.compile(r"([*|\\]|_\b)")
_NAME = re.compile(r"([A-Za-z_]\w*)((?:\.\w+)*)")


def public_names(module: ModuleType) -> list[str]:
    """The names of ``module`` that its users may use, without submodules and ``__version__``."""
    listed = getattr(module, "__all__", None) or _own_classes(module)
    names = [name for name in listed if not name.startswith("_")]
    return [name for name in names if not isinstance(getattr(module, name), ModuleType)]


def _own_classes(module: ModuleType) -> list[str]:
    found = [value for value in vars(module).values() if isinstance(value, type)]
    return [value.__name__ for value in found if value.__module__ == module.__name__]


@cache
def homes() -> dict[str, str]:
    """Public name -> its full name in the reference."""
    found: dict[str, str] = {}
    for name in MODULES:
        for public in public_names(importlib.import_module(name)):
            found.setdefault(public, f"{name}.{public}")
    return found


def restructured(lines: list[str]) -> Iterator[str]:
    """The lines of a docstring in reStructuredText."""
    section = False
    for block in _blocks(lines):
        if block[0].startswith("    ") and not section:
            yield from ["::", "", *block, ""]
            continue
        if len(block) > 1 and _UNDERLINE.fullmatch(block[1]):
            yield from [f".. rubric:: {block[0]}", ""]
            block, section = block[2:], True
        yield from [*(_entries(block) if section else _prose(block)), ""]


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """The lines between blank lines; code is one block with the blank lines in it."""
    block: list[str] = []
    for place, line in enumerate(lines):
        following = next((later for later in lines[place:] if later.strip()), "")
        in_code = bool(block) and block[0].startswith("    ") and following.startswith("    ")
        if line.strip() or in_code:
            block.append(line.rstrip())
        elif block:
            yield block
            block = []
    if block:
        yield block


def _entries(block: list[str]) -> Iterator[str]:
    """The lines ``name : meaning`` of a section, as a list."""
    for whole in _joined(block, lambda line: not line.startswith(" ")):
        entry = _ENTRY.fullmatch(whole)
        yield f"* ``{entry[1]}``: {_inline(entry[2])}" if entry else f"* {_inline(whole)}"


def _prose(block: list[str]) -> Iterator[str]:
    """A paragraph, or a list, which may follow the line before it directly."""
    listed = False
    for whole in _joined(block, lambda line: bool(_ITEM.match(line))):
        item = bool(_ITEM.match(whole))
        if item and not listed:
            yield ""
        listed = item
        yield f"* {_inline(whole[2:])}" if item else _inline(whole)


def _joined(block: list[str], begins: Callable[[str], bool]) -> Iterator[str]:
    """The texts that begin at the lines for which ``begins`` holds."""
    text: list[str] = []
    for line in block:
        if text and begins(line):
            yield " ".join(text)
            text = []
        text.append(line.strip())
    yield " ".join(text)


def _inline(text: str) -> str:
    """Literals as links to what they name, or as code; all else without the meanings of reStructuredText's marks."""
    parts = _LITERAL.split(text)
    parts[::2] = [_MARK.sub(r"\\\1", part) for part in parts[::2]]
    parts[1::2] = map(_literal, parts[1::2])
    return "".join(parts)


def _literal(text: str) -> str:
    """Code between two backticks; between one, a name, which leads to what it names near its place, or anywhere."""
    inner = text.strip("`")
    name = _NAME.fullmatch(inner)
    if text.startswith("``") or not name:
        return rf"``{inner}``\ "
    home = homes().get(name[1]) if name[1][0].isupper() else None
    return rf":py:obj:`{inner} <{home}{name[2]}>`\ " if home else rf":py:obj:`{inner}`\ "


def process(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Rewrite a docstring in place."""
    lines[:] = restructured(lines)


def readable(
    app: Sphinx, what: str, name: str, value: object, options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """A signature in which defaults of dataclasses that are made anew are Python, too."""
    return signature and signature.replace("<factory>", "..."), returned


def skipped(app: Sphinx, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    """Leave out the fields of a named tuple, which its docstring describes; keep the members of an enumeration."""
    if isinstance(value, Enum):
        return False
    return True if (getattr(value, "__doc__", None) or "").startswith("Alias for field") else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", readable)
    app.connect("autodoc-skip-member", skipped)
    return {"parallel_read_safe": True}
