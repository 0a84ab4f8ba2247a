"""The files of the device tier, from packaging/device-files.txt; as a script, prints them one a line."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "packaging" / "device-files.txt"


def device_files() -> list[Path]:
    """Every .py file of the tier that exists, relative to the root of the repository, sorted.

    A listed path that does not exist yet is not an error here: test_device_tier.py decides that.
    """
    return sorted({file for entry in entries() for file in _expand(entry)})


def entries() -> list[str]:
    """The list's lines without comments and blank ones."""
    lines = (line.split("#")[0].strip() for line in LIST.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def _expand(entry: str) -> list[Path]:
    path = ROOT / entry
    found = path.rglob("*.py") if entry.endswith("/") else [path] if path.exists() else []
    return [file.relative_to(ROOT) for file in found]


if __name__ == "__main__":
    print("\n".join(map(str, device_files())))
