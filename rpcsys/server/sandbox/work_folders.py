"""The directories of sessions: one for each, made before it and removed after it.

All are below one folder, removed with the server; a killed server's, by its zygote, or by the next server there.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

STEP = 200  # entries removed in one step: some milliseconds
PIECE = 1 << 28  # bytes of a large file that are given back in one step
_FILES = "files"
_FOLDER = re.compile(r"rpcsys-server-\d+-[0-9a-f]{8}")


def make_folder(parent: str) -> str:
    """A new folder for a server's sessions below ``parent``, for this user only, and held. Raises OSError."""
    while True:
        folder = os.path.join(parent, f"rpcsys-server-{os.getpid()}-{os.urandom(4).hex()}")
        os.mkdir(folder, 0o700)
        if hold(folder) >= 0:  # else another server has taken it for abandoned before
            return folder


def hold(folder: str) -> int:
    """Have no server take ``folder`` for abandoned while the returned descriptor, or a copy, is open; -1: gone."""
    try:
        descriptor = _opened(folder)
    except OSError:
        return -1
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        return descriptor  # a file system without locks: nobody finds anything abandoned there
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(folder), os.fstat(descriptor)):
            return descriptor
    os.close(descriptor)
    return -1


def abandoned(folder: str) -> dict[str, int]:
    """Folders beside ``folder`` of servers that were killed, each with a descriptor that keeps it from others."""
    found = {}
    parent = os.path.dirname(folder)
    for name in filter(_FOLDER.fullmatch, os.listdir(parent)):
        other = os.path.join(parent, name)
        try:
            descriptor = _opened(other)
        except OSError:
            continue  # another user's, or just removed
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise PermissionError(other)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found[other] = descriptor
        except OSError:
            os.close(descriptor)
    return found


def _opened(folder: str) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def home(folder: str, number: int) -> str:
    """What :func:`removal` is given after session ``number``."""
    return os.path.join(folder, f"session-{number}")


def make(folder: str, number: int) -> str:
    """The empty directory of session ``number``, with one for temporary files beside it. Raises OSError."""
    return _make(home(folder, number))


def make_ahead(folder: str, number: int) -> str:
    """A directory as :func:`make` makes them that no session has yet: for :func:`take`. Raises OSError."""
    ready = os.path.join(folder, f"ready-{number}")
    _make(ready)
    return ready


def take(ready: str, folder: str, number: int) -> str:
    """Give session ``number`` a directory that was made ahead: one step on the disk, not three. Raises OSError."""
    place = home(folder, number)
    os.rename(ready, place)
    return os.path.join(place, _FILES)


def _make(place: str) -> str:
    try:
        os.mkdir(place, 0o700)
    except FileNotFoundError:
        os.makedirs(place, 0o700)
        hold(os.path.dirname(place))
    files = os.path.join(place, _FILES)
    os.mkdir(files, 0o700)
    os.mkdir(temporary(files), 0o700)
    return files


def temporary(files: str) -> str:
    """Where the temporary files of the session in the directory ``files`` go: not into its listings."""
    return os.path.join(os.path.dirname(files), "tmp")


def left_in(root: str) -> str:
    """What :func:`removal` could not remove of ``root``, and why; empty when all of it is gone."""
    try:
        os.rmdir(root)
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{root} ({error.strerror})"
    return ""


def removal(root: str) -> Iterator[None]:
    """Remove a tree, a step with every ``next``. What cannot be removed is left; links are not followed.

    A folder found inside is first moved up to ``root``: a session can nest them deeper than a path may be long.
    """
    numbers = itertools.count(1)
    folders: list[str] = []
    large: list[str] = []

    def take(entry: os.DirEntry[str]) -> None:
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
            place = os.path.join(root, f".removing-{next(numbers)}")
            os.rename(entry.path, place)
            folders.append(place)
        elif entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size > PIECE:
            large.append(entry.path)
        else:
            os.unlink(entry.path)

    folder = root
    while True:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for number, entry in enumerate(entries, 1):
                _quietly(take, entry)
                if number % STEP == 0:
                    yield
        while large:
            yield from _shrink(large.pop())
        if folder != root:
            _quietly(os.rmdir, folder)
        if not folders:
            break
        folder = folders.pop()
    _quietly(os.rmdir, root)


def _shrink(path: str) -> Iterator[None]:
    """Remove a large file, piece by piece: giving back gigabytes at once would hold up the loop."""
    with contextlib.suppress(OSError):  # then it goes at once, or not at all
        status = os.lstat(path)
        for size in range(status.st_size - PIECE, 0, -PIECE) if status.st_nlink == 1 else ():
            os.truncate(path, size)
            yield
    _quietly(os.unlink, path)


def _quietly(act: Callable[[Any], object], what: Any) -> None:
    with contextlib.suppress(OSError):
        act(what)
