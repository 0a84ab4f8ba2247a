"""Files of settings, ``NAME=value`` a line, as systemd's ``EnvironmentFile=`` reads them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path


def read(path: Path) -> str:
    """The text of a file; nothing, if it is not there. Raises OSError, and UnicodeDecodeError: it is no text."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""


def value(text: str, name: str) -> str:
    """The value that holds, the last one, without quotes; nothing if there is none."""
    *_, last = ["", *(found[1] for found in _assignments(text, name))]
    return last.replace("\\\n", " ").strip(" \t\"'")


def with_values(text: str, values: Mapping[str, str]) -> str:
    """The text with these values in place of those that held. All other lines stay, also of values that hold as is."""
    for name, wanted in values.items():
        line, found = f"{name}={wanted}", [*_assignments(text, name)]
        if not found:
            text = f"{text.rstrip()}\n{line}\n".lstrip()
        elif value(text, name) != wanted:
            text = text[: found[-1].start()] + line + text[found[-1].end() :]
    return text


def write(path: Path, text: str) -> None:
    """Put a text in a file's place, whole or not at all. The file before is kept beside it, as ``NAME.old``.

    Its owner and mode are those of the file before. Raises OSError.
    """
    partial = path.with_name(f"{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)  # it may have a password
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.chmod(0o644)
    if path.exists():
        before = path.stat()
        os.chown(partial, before.st_uid, before.st_gid)
        partial.chmod(before.st_mode & 0o777)
        shutil.copy2(path, path.with_name(f"{path.name}.old"))
    os.replace(partial, path)


def _assignments(text: str, name: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"^{re.escape(name)}=((?:.*\\\n)*.*)$", text, re.MULTILINE)
