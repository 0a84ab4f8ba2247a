"""The audit log of a lab, ``audit.jsonl``: who did what, as JSON lines of which each has the hash of the one before.

A changed, missing or added line breaks the chain at the line behind it. Whoever can write the file can make a new
chain: who keeps a hash elsewhere (the tracker logs the newest one each hour) can tell.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from rpcsys.errors import ConfigError

FILE = "audit.jsonl"
RECOVER = "recover"  # what is done to a member that a command on the tracker's host has made
FIRST = "0" * 64  # ``prev`` of the first line
MAX_LINE = 64 << 10  # bytes; a longer one is damage
_TAIL = 2 * MAX_LINE
MAX_PAGE = 64 << 10  # characters of a page, which JSON may make six times as long, before its last line
_PLACES = 64


class AuditEntry(NamedTuple):
    """What is recorded. ``at``: seconds since 1970; ``on``: what it was done to; ``result``: why not, "" for done."""

    at: float
    who: str
    came_from: str
    did: str
    on: str = ""
    result: str = ""


class AuditLog:
    """The open file. One process writes, from any thread; its lines are on the disk when :meth:`write` returns.

    Raises `ConfigError`: the file cannot be written, or is none. What a kill has left of a last line is removed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE
        self._lock = threading.Lock()
        try:
            self._file: IO[bytes] = os.fdopen(
                os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", 0
            )
            fcntl.flock(self._file, fcntl.LOCK_SH)
            self.head = self._go_on()
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from None

    def _go_on(self) -> str:
        """Go to the end of the last whole line; return its hash."""
        start = max(0, self._file.seek(0, os.SEEK_END) - _TAIL)
        self._file.seek(start)
        tail = self._file.read()
        whole, end, cut = tail.rpartition(b"\n")
        if start and not end:
            raise ConfigError(f"{self.path} is no audit log: its last line is too long; move it away")
        self._file.truncate(start + len(tail) - len(cut))
        return hash_of(whole.rpartition(b"\n")[2]) if end else FIRST

    def write(self, entries: Iterable[AuditEntry]) -> None:
        """Append lines. Raises OSError: none of them was written, or the last one in part."""
        with self._lock:
            lines = []
            head = self.head
            for entry in entries:
                line = line_of(entry, head)
                lines.append(line + b"\n")
                head = hash_of(line)
            end = self._file.seek(0, os.SEEK_END)
            try:
                data = memoryview(b"".join(lines))
                while data:
                    data = data[self._file.write(data) or 0 :]
                os.fsync(self._file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(end)
                raise
            self.head = head

    def is_alone(self) -> bool:
        """Whether no other process has the file open, as a running tracker has; none opens it until :meth:`close`."""
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class AuditReader:
    """Pages of an audit log's lines. It remembers where pages end, for whoever asks for the next one."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE
        self._places: dict[int, int] = {1: 0}  # the number of a line -> where it begins

    def page(self, start: int, limit: int) -> tuple[list[str], int]:
        """At most ``limit`` whole lines from the number ``start`` on, and the number of the next; 0 at the end.

        What is no UTF-8 is kept (`surrogateescape`), a longer line than `MAX_LINE` is cut behind it. Raises OSError.
        """
        lines: list[str] = []
        with self.path.open("rb") as file:
            number = max(known for known in self._places if known <= start)
            file.seek(self._places[number])
            size = 0
            while len(lines) < limit and size < MAX_PAGE:
                line = file.readline()
                if not line.endswith(b"\n"):
                    return lines, 0
                number += 1
                if number > start:
                    lines.append(line[: MAX_LINE + 1].rstrip(b"\n").decode("utf-8", "surrogateescape"))
                    size += len(lines[-1])
            while len(self._places) > _PLACES:
                del self._places[next(known for known in self._places if known != 1)]
            self._places[number] = file.tell()
        return lines, number


def line_of(entry: AuditEntry, prev: str) -> bytes:
    """An entry as a line, without its end. Texts are cut: a line has at most `MAX_LINE` bytes."""
    fields: dict[str, Any] = {"at": round(entry.at, 3), "who": entry.who, "from": entry.came_from, "did": entry.did}
    fields.update({name: text for name, text in (("on", entry.on), ("result", entry.result)) if text})
    cut = {name: value[:1000] if isinstance(value, str) else value for name, value in fields.items()}
    return json.dumps({**cut, "prev": prev}, separators=(",", ":")).encode()


def hash_of(line: bytes) -> str:
    """What the next line has as ``prev``: the SHA-256 of a line without its end."""
    return hashlib.sha256(line).hexdigest()


class Verified(NamedTuple):
    """What :func:`verify` found. ``broken``: the number of the first line that does not fit, from 1; 0 for none."""

    lines: int
    head: str
    broken: int
    why: str


def verify(lines: Iterable[bytes], kept: str = "") -> Verified:
    """Check the chain of a file's lines, and that a hash ``kept`` elsewhere is that of one of them."""
    head, number, seen = FIRST, 0, not kept or kept == FIRST
    for number, line in enumerate(lines, 1):
        why = _wrong(line, head)
        if why:
            return Verified(number, head, number, why)
        head = hash_of(line.rstrip(b"\n"))
        seen = seen or head == kept
    if not seen:
        return Verified(number, head, number + 1, "no line has the hash that was kept: lines were removed or replaced")
    return Verified(number, head, 0, "")


def _wrong(line: bytes, head: str) -> str:
    """Why a line does not follow the one with the hash ``head``; empty if it does."""
    if len(line) > MAX_LINE:
        return "it is too long"
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return "it is no JSON (cut by a crash, or changed)"
    if not isinstance(fields, Mapping):
        return "it is no JSON object"
    if fields.get("prev") != head:
        return "the line before it was changed, removed or added"
    return ""
