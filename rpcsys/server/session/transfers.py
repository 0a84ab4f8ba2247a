"""What push and pull need of a session's directory: what is there, and files written whole, with mode and time.

Paths are checked as those of every file (`Directory`). Links to files are followed inside of the directory only, links
to folders never.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Iterator

from rpcsys.errors import RemoteArgumentError, RemoteFileError, RpcsysError
from rpcsys.server.cache import write_all
from rpcsys.server.session.directory import Directory, file_errors
from rpcsys.wire.checks import shown

MAX_ENTRIES = 100_000  # of one tree
_MODE = 0o777  # of a file's mode: no setuid, which is another machine's
_WRITTEN = -1  # the number of the file that is being written; those of uploads are not negative
#: The longest time that every file system takes: the year 2446.
_MOST_NS = 15_032_385_535 * 10**9


class Transfers:
    """Functions of a session on its ``directory``. They raise as `Directory` does."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._root = os.path.realpath(directory.root)

    def tree(self, name: str) -> bytes:
        """The file ``name``, or the folder with all that is below it, as JSON; ``[]`` if there is none.

        Each is its path below ``name`` ("" for itself), its mode as stat has it, its size, and its time in nanoseconds
        since 1970.
        """
        path = self._directory.path(name)
        with file_errors(name):
            if not os.path.exists(path):
                return b"[]"
            found = [_about("", os.stat(path))]
            for each in self._below(path, "") if os.path.isdir(path) else ():
                found.append(each)
                if len(found) > MAX_ENTRIES:
                    raise RemoteFileError(f"{name}: more than {MAX_ENTRIES} files; take a folder below it")
        return json.dumps(found).encode()

    def _below(self, path: str, inside: str) -> Iterator[list[Any]]:
        with os.scandir(path) as entries:
            known = sorted(entries, key=lambda entry: entry.name)
        for entry in known:
            folder = entry.is_dir(follow_symlinks=False)
            if (folder or entry.is_file()) and self._may_be_named(entry.path):
                name = os.path.join(inside, entry.name)
                yield _about(name, entry.stat())
                if folder:
                    yield from self._below(entry.path, name)

    def _may_be_named(self, path: str) -> bool:
        with contextlib.suppress(RpcsysError):  # the server's own, a link that leads outside, or no text
            return bool(self._directory.path(os.path.relpath(path, self._root)))
        return False

    def make_folders(self, names: list[Any]) -> None:
        """Make folders, and those above them. One that is there is left as it is."""
        for name in names:
            if type(name) is not str:
                raise RemoteArgumentError("session.make_folders takes names")
            path = self._directory.path(name)
            with file_errors(name):
                os.makedirs(path, exist_ok=True)

    def write(self, entries: list[Any], content: bytes | memoryview) -> None:
        """Write whole files, each (name, mode, time in nanoseconds, size), whose bytes stand together in ``content``.

        Each replaces the file of its name at once.
        """
        begin = 0
        for name, mode, time_ns, size in _checked(entries):
            if type(size) is not int or not 0 <= size <= len(content) - begin:
                raise RemoteArgumentError(f"{shown(name)}: {shown(size)} bytes are announced, and fewer came")
            piece = memoryview(content)[begin : begin + size]
            begin += size
            target, private = self._directory.fresh(name), self._directory.private(_WRITTEN)
            with file_errors(name):
                try:
                    with open(private, "wb", buffering=0) as stream:
                        write_all(stream, piece)
                    _put(private, target, mode, time_ns)
                except OSError:
                    with contextlib.suppress(OSError):  # a full disk is not to be fuller than before
                        os.unlink(private)
                    raise

    def place(self, entries: list[Any]) -> None:
        """Give files their names, modes and times: each (name, mode, time in nanoseconds, name now)."""
        for name, mode, time_ns, now in _checked(entries):
            if type(now) is not str:
                raise RemoteArgumentError("session.place takes a name for the file as it is now")
            path, target = self._directory.existing(now), self._directory.fresh(name)
            with file_errors(name):
                _put(path, target, mode, time_ns)


def _about(name: str, found: os.stat_result) -> list[Any]:
    return [name, found.st_mode, found.st_size, found.st_mtime_ns]


def _checked(entries: list[Any]) -> Iterator[tuple[Any, ...]]:
    """The entries, of which name, mode and time are what they should be."""
    for entry in entries:
        if type(entry) is not list or len(entry) != 4:
            raise RemoteArgumentError(f"a file is a name, a mode, a time and one more, not {shown(entry)}")
        name, mode, time_ns, _ = entry
        fit = type(name) is str and type(mode) is int and type(time_ns) is int
        if not fit or not 0 <= time_ns <= _MOST_NS:
            raise RemoteArgumentError(f"no name, mode and time of a file: {shown(entry)}")
        yield tuple(entry)


def _put(path: str, target: str, mode: int, time_ns: int) -> None:
    os.chmod(path, mode & _MODE)
    os.utime(path, ns=(time_ns, time_ns))
    os.replace(path, target)
