"""The files of the device tier, from packaging/device-files.txt; as a script, prints them one a line."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "packaging" / "device-files.txt"


def lines() -> list[str]:
    """The list without comments and blank lines."""
    found = (line.split("#")[0].strip() for line in LIST.read_text(encoding="utf-8").splitlines())
    return [line for line in found if line]


def entries() -> dict[str, frozenset[str]]:
    """The entries of the list: path -> the packages it needs, none for most."""
    parts = [line.partition(" needs ") for line in lines() if not line.endswith(" stays")]
    return {path: frozenset(needs.replace(",", " ").split()) for path, _, needs in parts}


def staying() -> set[str]:
    """Paths below an entry that no board gets."""
    return {line[: -len(" stays")] for line in lines() if line.endswith(" stays")}


def device_files() -> dict[Path, frozenset[str]]:
    """Every .py file of the tier, relative to the root of the repository, and the packages it needs."""
    files: dict[Path, frozenset[str]] = {}
    for entry, needs in sorted(entries().items()):  # a folder comes before what is said of a file in it
        path = ROOT / entry
        found = path.rglob("*.py") if entry.endswith("/") else [path]
        files.update((file.relative_to(ROOT), needs) for file in sorted(found))
    return {file: needs for file, needs in files.items() if file.suffix == ".py" and str(file) not in staying()}


if __name__ == "__main__":
    print("\n".join(map(str, device_files())))
