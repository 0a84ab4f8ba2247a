"""Folders of the project that are no Python packages: beside ``rpcsys`` in a checkout, within it in a wheel."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """Where the files of ``native``, ``packaging``, ``toolchains``, ``systemd`` or ``docs/monitoring`` are."""
    installed = _HERE / "_data" / name
    return installed if installed.is_dir() else _HERE.parent / name
