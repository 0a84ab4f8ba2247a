"""This machine's Pythons that the device tier must support."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

OLDEST = (3, 8)

_NAME = re.compile(r"python3(\.\d+)?$")
_ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


@lru_cache(maxsize=1)
def pythons() -> dict[str, str]:
    """``{"3.8": "/path/to/python3.8", …}``: one interpreter per version, this one for its own version."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    for path in _candidates():
        named = path.name.removeprefix("python")
        if named not in found and not (3,) < _key(named) < OLDEST:  # to start one takes long: pyenv's wrappers 0.2 s
            version = _version(path)
            if version and _key(version) >= OLDEST:
                found.setdefault(version, str(path))
    return dict(sorted(found.items(), key=lambda item: _key(item[0])))


def _candidates() -> list[Path]:
    folders = [*sorted(Path.home().glob(".pyenv/versions/*/bin")), Path("/usr/bin")]
    folders += [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir(), reverse=True)]
    unique: dict[Path, Path] = {}
    for path in files:
        if _NAME.match(path.name):
            unique.setdefault(path.resolve(), path)
    return list(unique.values())


def _version(path: Path) -> str | None:
    try:
        answer = subprocess.run([path, "-I", "-S", "-c", _ASK], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
