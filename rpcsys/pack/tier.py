"""The device tier: which files a board gets, as packaging/device-files.txt lists them."""

from __future__ import annotations

from pathlib import Path

import rpcsys
from rpcsys import data

#: Where the paths of the list begin: the folder that ``rpcsys`` is in.
ROOT = Path(rpcsys.__file__).resolve().parent.parent


def files() -> dict[str, Path]:
    """Every file of the tier by its path from `ROOT`."""
    text = (data.folder("packaging") / "device-files.txt").read_text(encoding="utf-8")
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    staying = {line.removesuffix(" stays") for line in lines if line.endswith(" stays")}
    found: dict[str, Path] = {}
    for line in filter(None, lines):
        if not line.endswith(" stays"):
            path = ROOT / line.partition(" needs ")[0]
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                found[file.relative_to(ROOT).as_posix()] = file
    return {name: file for name, file in found.items() if name not in staying}
