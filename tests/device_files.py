"""The files of the device tier, from packaging/device-files.txt; as a script, prints them one a line."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "packaging" / "device-files.txt"


def entries() -> dict[str, frozenset[str]]:
    """The list: path -> the packages it needs, none for most. Comments and blank lines left out."""
    lines = (line.split("#")[0].strip() for line in LIST.read_text(encoding="utf-8").splitlines())
    parts = [line.partition(" needs ") for line in lines if line]
    return {path: frozenset(needs.replace(",", " ").split()) for path, _, needs in parts}


def device_files() -> dict[Path, frozenset[str]]:
    """Every .py file of the tier, relative to the root of the repository, and the packages it needs."""
    files: dict[Path, frozenset[str]] = {}
    for entry, needs in sorted(entries().items()):  # a folder comes before what is said of a file in it
        path = ROOT / entry
        found = path.rglob("*.py") if entry.endswith("/") else [path]
        files.update((file.relative_to(ROOT), needs) for file in sorted(found))
    return files


if __name__ == "__main__":
    print("\n".join(map(str, device_files())))
