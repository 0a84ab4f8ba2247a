"""What the package measures: its files, its lines, its import circles, and the class names that occur twice.

python -m tests.counts [--names]        exit status 1 if there is more of what is to vanish than there was
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.test_layers import MODULES, imported

#: How much is left of what is to be 0. These numbers may only fall.
IN_CIRCLES = 20
TWICE = 52


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


def main() -> int:
    """Print the counts; the exit status."""
    lines = sum(path.read_bytes().count(b"\n") for path in MODULES.values())
    found, names = circles(imports(MODULES)), twice(MODULES)
    inside = sum(map(len, found))
    print(
        f"rpcsys: {len(MODULES)} files, {lines:,} lines; {len(found)} import circles of {inside} modules (at most {IN_CIRCLES}), "
        f"{len(names)} class names that occur twice (at most {TWICE})"
    )
    too_many = inside > IN_CIRCLES or len(names) > TWICE
    if too_many or "--names" in sys.argv:
        print(*(f"circle: {' '.join(circle)}" for circle in found), sep="\n")
        print(f"twice: {' '.join(names)}")
    return int(too_many)


if __name__ == "__main__":
    sys.exit(main())
