"""Counts of the package: files, lines, import circles, class names that occur twice, code without a test file.

python -m tests.counts [--names]        exit status 1 if there is more of what is to vanish than there was
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.test_layers import MODULES, PACKAGE, ROOT, imported

#: The limits. Only a feature that needs more lines raises `LINES`.
LINES = 94_050
CIRCLES = 0
TWICE = 0
UNTESTED = 0
LONG = 0

#: The longest file, in lines.
LONGEST = 450


def imports(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """The modules that each module imports, inside functions and for types too.

    The package's root has none: it loads its public names when they are first used.
    """
    return {
        name: {target for target, _ in imported(path) if target in modules} if "." in name else set()
        for name, path in modules.items()
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return sorted(list(group) for group in groups if group)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def twice(modules: Mapping[str, Path]) -> list[str]:
    """The names of classes that more than one module defines."""
    counts = Counter(name for path in modules.values() for name in _classes(path))
    return sorted(name for name, count in counts.items() if count > 1)


def _classes(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def untested(files: Iterable[Path], package: Path, tests: Path) -> list[str]:
    """The files of ``package`` for which ``tests`` has no file: for ``a/b.py`` that is ``a/test_b.py``."""
    inside = [path.relative_to(package) for path in files if not path.name.startswith("__")]
    return sorted(str(path) for path in inside if not (tests / path.parent / f"test_{path.name}").exists())


def long_files(files: Iterable[Path], lines: int = LONGEST) -> list[str]:
    """The names of the files that have more lines."""
    return sorted(path.name for path in files if _lines(path) > lines)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def main() -> int:
    """Print the counts. Returns the exit status."""
    files, tests = list(MODULES.values()), ROOT / "tests"
    lines = sum(map(_lines, files))
    names = {
        "import circles": [" > ".join(circle) for circle in circles(imports(MODULES))],
        "class names that occur twice": twice(MODULES),
        "files without a test file": untested(files, PACKAGE, tests),
        "long files": long_files([*files, *tests.rglob("*.py")]),
    }
    most = dict(zip(names, (CIRCLES, TWICE, UNTESTED, LONG), strict=True))
    print(
        f"rpcsys: {len(files)} files, {lines:,} lines (at most {LINES:,})",
        *(f"{len(some)} {kind} (at most {most[kind]})" for kind, some in names.items()),
        sep="; ",
    )
    too_many = [kind for kind, some in names.items() if len(some) > most[kind]]
    if lines > LINES:
        print(f"{lines - LINES} lines too many: shorten, or raise LINES in tests/counts.py and say why in the commit")
    for kind in names if "--names" in sys.argv else too_many:
        print(f"{kind}: {', '.join(names[kind])}")
    return int(bool(too_many) or lines > LINES)


if __name__ == "__main__":
    sys.exit(main())
