"""The directories of sessions: one for each, made before it and removed after it.

All are below one folder, which the server removes when it ends; after a kill, its zygote or the next server does.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

STEP = 200  # entries removed in one step: some milliseconds
PIECE = 1 << 28  # bytes of a large file that are freed in one step
_FILES = "files"
_LONG = struct.calcsize("l")
#: The requests and the sizes of ioctl(2) for a directory's flags, and for its project and hints (ioctl_iflags(2),
#: ioctl_xfs_fsgetxattr(2)). A machine with other numbers answers with an error.
_READ_FLAGS = ((0x80006601 | _LONG << 16, _LONG), (0x801C581F, 28))
_FOLDER = re.compile(r"rpcsys-server-\d+-[0-9a-f]{8}")


def make_folder(parent: str) -> str:
    """Make and lock a folder for a server's sessions below ``parent``, for this user only. Raises OSError."""
    while True:
        folder = os.path.join(parent, f"rpcsys-server-{os.getpid()}-{os.urandom(4).hex()}")
        os.mkdir(folder, 0o700)
        if hold(folder) >= 0:  # else another server has removed it as abandoned
            return folder


def hold(folder: str) -> int:
    """Lock ``folder`` against removal while the returned descriptor, or a copy of it, is open; -1 if it is gone."""
    try:
        descriptor = _opened(folder)
    except OSError:
        return -1
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        return descriptor  # a file system without locks: no server removes abandoned folders there
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(folder), os.fstat(descriptor)):
            return descriptor
    os.close(descriptor)
    return -1


def abandoned(folder: str) -> dict[str, int]:
    """Folders of killed servers beside ``folder``, each with a descriptor that locks it."""
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
    """The path that :func:`removal` removes after session ``number``."""
    return os.path.join(folder, f"session-{number}")


def make(folder: str, number: int) -> str:
    """Make the empty directory of session ``number``, and one for temporary files beside it. Raises OSError."""
    return _make(home(folder, number))


def make_ahead(folder: str, number: int) -> str:
    """Make a directory, as :func:`make` does, that :func:`take` gives to a later session. Raises OSError."""
    ready = os.path.join(folder, f"ready-{number}")
    _make(ready)
    return ready


def take(ready: str, folder: str, number: int) -> str:
    """Give session ``number`` a directory made ahead: one operation of the disk instead of three. Raises OSError."""
    place = home(folder, number)
    os.rename(ready, place)
    return os.path.join(place, _FILES)


def state(files: str) -> list[tuple[int, ...]]:
    """What shows a change of the session's directory ``files``, or of those beside and above it. Raises OSError.

    Entries that are made and removed, other rights and attributes change a directory's ctime, which no session sets.
    """
    places = (os.path.dirname(files), files, temporary(files))
    stats = [os.stat(place, follow_symlinks=False) for place in places]
    return [(one.st_ino, one.st_mode, one.st_uid, one.st_gid, one.st_nlink, one.st_ctime_ns) for one in stats]


def give(files: str, uid: int, gid: int) -> None:
    """Make a user the owner of a session's directory, and of those beside and above it. Raises OSError."""
    for place in (os.path.dirname(files), files, temporary(files)):
        if os.stat(place, follow_symlinks=False).st_uid != uid:
            os.chown(place, uid, gid, follow_symlinks=False)


def renew(files: str, before: list[tuple[int, ...]]) -> None:
    """Make the directories that a session has changed since `state` was ``before``, and has left empty, like new.

    One that has only had entries is like its untouched neighbour, and stays; another one is made anew.
    Raises OSError if that is impossible: something is there, or the directory above was changed.
    """
    now = state(files)
    if now[0] != before[0]:
        raise FileExistsError(os.path.dirname(files))
    places = (files, temporary(files))
    changed = [place for place, *states in zip(places, now[1:], before[1:]) if states[0] != states[1]]
    for place in changed:
        if len(changed) == len(places) or not _alike(*places):
            os.rmdir(place)
            os.mkdir(place, 0o700)


def _alike(*places: str) -> bool:
    """Whether directories differ in nothing that a session may set, except times; False where a system does not say."""
    try:
        return len({_attributes(place) for place in places}) == 1
    except OSError:
        return False


def _attributes(place: str) -> tuple[object, ...]:
    descriptor = _opened(place)
    try:
        one = os.fstat(descriptor)
        flags = [fcntl.ioctl(descriptor, request, bytes(size)) for request, size in _READ_FLAGS]
        extended = [(name, os.getxattr(descriptor, name)) for name in sorted(os.listxattr(descriptor))]
        return (one.st_mode, one.st_uid, one.st_gid, one.st_nlink, one.st_size, *flags, *extended)
    finally:
        os.close(descriptor)


def put_back(files: str, number: int) -> str:
    """Make a session's directory, untouched or renewed, one for a later session, as `make_ahead`. Raises OSError."""
    for place in (files, temporary(files)):  # a change so soon after the last one that ctime is the same
        with os.scandir(place) as entries:
            if any(entries):
                raise FileExistsError(place)
    place = os.path.dirname(files)
    ready = os.path.join(os.path.dirname(place), f"ready-{number}")
    os.rename(place, ready)
    return ready


def remove_empty(files: str) -> None:
    """Remove a session's directory in which nothing is. Raises OSError if something is there."""
    for place in (files, temporary(files), os.path.dirname(files)):
        os.rmdir(place)


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
    """The folder for temporary files of the session whose directory is ``files``; no listing shows it."""
    return os.path.join(os.path.dirname(files), "tmp")


def left_in(root: str) -> str:
    """Return ``root`` and the reason if :func:`removal` could not remove it; empty if all of it is gone."""
    try:
        os.rmdir(root)
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{root} ({error.strerror})"
    return ""


def removal(root: str) -> Iterator[None]:
    """Remove a tree, one step with every ``next``. What cannot be removed stays; links are not followed.

    A nested folder is first moved up to ``root``: a session can nest folders deeper than the longest path. ``root`` is
    closed to other users first, and each folder in it, so that no session replaces an entry by a link meanwhile.
    """
    _quietly(_close, root)
    numbers = itertools.count(1)
    folders: list[str] = []
    large: list[str] = []

    def take(entry: os.DirEntry[str]) -> None:
        if entry.is_dir(follow_symlinks=False):
            _close(entry.path)
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


def _close(folder: str) -> None:
    if os.stat(folder, follow_symlinks=False).st_uid != os.geteuid():
        os.chown(folder, os.geteuid(), -1, follow_symlinks=False)
    os.chmod(folder, 0o700)


def _shrink(path: str) -> Iterator[None]:
    """Remove a large file piece by piece: freeing gigabytes at once would block the loop."""
    with contextlib.suppress(OSError):  # then it is removed in one step, if at all
        status = os.lstat(path)
        for size in range(status.st_size - PIECE, 0, -PIECE) if status.st_nlink == 1 else ():
            os.truncate(path, size)
            yield
    _quietly(os.unlink, path)


def _quietly(act: Callable[[Any], object], what: Any) -> None:
    with contextlib.suppress(OSError):
        act(what)
