"""The boards that this machine manages: one file, replaced atomically, changed by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rpcsys.errors import ConfigError, RpcsysError

FORM = 1
MAX_BYTES = 16 << 20  # ten thousand boards take 4 MB


@dataclass(frozen=True)
class Entry:
    """A server on a board: how to reach the board, and how to pack for it. Default values are empty."""

    name: str
    destination: str
    options: tuple[str, ...] = ()  # ssh's flags
    key: str = ""
    tracker: str = ""
    root: str = ""
    python: str = ""
    libraries: str = ""  # ``wheels``, a build folder, or empty for none
    drivers: tuple[str, ...] = ()
    target: str = ""
    version: str = ""  # the version that this machine installed last

    def same_board(self, other: Entry) -> bool:
        """Whether both are on the same board, installed below the same root."""
        return (self.destination, self.options, self.root) == (other.destination, other.options, other.root)


def check_name(name: str) -> str:
    """``name``, if it is valid for a server: it is part of file names on the board. Raises ConfigError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        text = f"{name!r} is no name for a server: letters, digits, dots and dashes; give another with --name"
        raise ConfigError(text)
    return name


Boards = dict[str, Entry]
_LISTS = ("options", "drivers")


def path() -> Path:
    """The path of the file: ``$XDG_STATE_HOME/rpcsys/boards.json``."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "rpcsys" / "boards.json"


def parse(text: str) -> Boards:
    """Parse the file's text. Raises ValueError."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict) or found.get("form") != FORM or not isinstance(found.get("boards"), list):
        raise ValueError(f"it is not a list of boards in form {FORM}")
    return {entry.name: entry for entry in map(_entry, found["boards"])}


def _entry(found: Any) -> Entry:
    if not isinstance(found, dict):
        raise ValueError("an entry is not an object")
    values: dict[str, Any] = {field.name: found[field.name] for field in fields(Entry) if field.name in found}
    for name, value in values.items():
        fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not (fits if name in _LISTS else isinstance(value, str)):
            raise ValueError(f"{name} cannot be {value!r}"[:200])
    if not values.get("name") or not values.get("destination"):
        raise ValueError("an entry has no name or no destination")
    values.update((name, tuple(values[name])) for name in _LISTS if name in values)
    return Entry(**values)


def show(boards: Boards) -> str:
    """The text of the file, the inverse of `parse`."""
    entries = [asdict(boards[name]) for name in sorted(boards)]
    return json.dumps({"form": FORM, "boards": entries}, indent=1, ensure_ascii=True) + "\n"


def load() -> Boards:
    """The boards; empty if there is no file. Raises ConfigError if it cannot be read."""
    file = path()
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError("it is too long")
        return parse(data.decode())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read: {error}; repair it, or remove it and add the boards again") from None


@contextlib.contextmanager
def changing() -> Iterator[Boards]:
    """The boards, to be changed; written at the end unless an error was raised. Raises as `load`, and RpcsysError."""
    file = path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            boards = load()
            yield boards
            partial = file.with_suffix(".partial")
            with partial.open("w") as stream:
                stream.write(show(boards))
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, file)
    except OSError as error:
        raise RpcsysError(f"cannot write {file}: {error.strerror}") from None
