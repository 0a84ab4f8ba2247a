"""Files kept between sessions by their SHA-256, so that the same model is sent to a board once.

Sessions share the folder: objects appear by rename, a writer locks its partial file, only plain files are opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from typing import Any, BinaryIO, Callable, Iterator, Optional

from rpcsys.errors import ConfigError

_NAME = re.compile(r"[0-9a-f]{64}\Z")
PIECE = 1 << 20  # bytes of a file that are read at a time
#: Bytes freed at a time, or the cap divided by the second number if that is more: each time costs a listing.
_ROOM, _ROOM_PART = 1 << 20, 64


def valid(digest: Any) -> bool:
    """Whether ``digest`` is a SHA-256 in lower-case hexadecimal digits."""
    return isinstance(digest, str) and _NAME.match(digest) is not None


def new_hash() -> Any:
    """An empty SHA-256. hashlib is imported at the first call: it loads OpenSSL, 3.5 MB of a board's memory."""
    import hashlib

    return hashlib.sha256()


class Cache:
    """A folder of files by content, at most ``cap`` bytes in all. The least recently used file is removed first.

    ``objects/HASH`` are whole files; ``partial/HASH`` are interrupted uploads, which a later session
    resumes. Raises `ConfigError` when the folder cannot be made or written to.

    Sessions with users of their own share it by the group of both folders (:meth:`share`).
    """

    def __init__(self, folder: str, cap: int) -> None:
        self._objects = os.path.join(folder, "objects")
        self._partial = os.path.join(folder, "partial")
        self._cap = cap
        try:
            for path in (self._objects, self._partial):
                os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            how = "give a folder in which this user may write"
            raise ConfigError(f"cannot use {folder} as a cache: {error.strerror or error}; {how}") from None

    def share(self, group: int) -> None:
        """Open the folders to a group, and what is in them: its members are users of sessions. Raises OSError."""
        for folder in (self._objects, self._partial):
            os.chown(folder, -1, group)
            os.chmod(folder, 0o770)
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError), _open(entry.path, os.O_RDONLY) as stream:
                    _share(stream, group)

    def place(self, digest: str, target: str) -> bool:
        """Copy the file with this SHA-256 to the path ``target``; False when it is missing or damaged.

        The hash is computed during the copy. A link would let one session change the file of others
        (docs/decisions/0013-cached-files-are-copied.md). Raises OSError when ``target`` cannot be written.
        """
        path, fresh = os.path.join(self._objects, digest), target + ".rpcsys-new"
        try:
            source = _open(path, os.O_RDONLY)
        except OSError:  # missing, removed by another session, or replaced by a link
            return False
        try:
            actual = new_hash()
            with source, open(fresh, "wb", buffering=0) as copy:
                for piece in pieces_of(source):
                    actual.update(piece)
                    write_all(copy, piece)
            if actual.hexdigest() != digest:
                _forget(path)
                return False
            with contextlib.suppress(PermissionError):  # its owner, another session's user, forbids it
                os.utime(path)
            os.chmod(fresh, 0o444)
            os.replace(fresh, target)
        except FileNotFoundError:
            return False
        finally:
            _forget(fresh)
        return True

    def resume(self, digest: str) -> Optional[Partial]:
        """The partial upload with this SHA-256, new or interrupted; None while a session writes it. Raises OSError."""
        path = os.path.join(self._partial, digest)
        stream = _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        if not _lock(stream):
            stream.close()
            return None
        with contextlib.suppress(PermissionError):  # its owner is another session's user, who has shared it
            _share(stream, os.stat(self._partial).st_gid)
        os.utime(path)
        return Partial(self, path, stream, os.path.join(self._objects, digest))

    def offset(self, digest: str, size: int) -> int:
        """How many of the ``size`` bytes of this file an earlier session has uploaded."""
        try:
            left = os.lstat(os.path.join(self._partial, digest))
        except FileNotFoundError:
            return 0
        return left.st_size if stat.S_ISREG(left.st_mode) and left.st_size <= size else 0

    def room(self, wanted: int, spared: str) -> int:
        """Free space so that the file ``spared`` may have ``wanted`` bytes; how many it may have. Raises OSError."""
        files = [entry for entry in self._files() if entry[2] != spared]
        total = sum(size for _, size, _ in files)
        more = min(wanted + max(_ROOM, self._cap // _ROOM_PART), self._cap)
        for _, size, path in sorted(files):
            if total + more <= self._cap:
                break
            if not self._in_use(path):
                _forget(path)
                total -= size
        if total + wanted > self._cap:
            raise OSError(errno.EDQUOT, "the cache is full of uploads under way")
        return more

    def _in_use(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            if os.path.dirname(path) == self._partial:
                with _open(path, os.O_RDONLY) as stream:
                    return not _lock(stream)
        return False

    def _files(self) -> list[tuple[float, int, str]]:
        """Time of last use, size in bytes and path of every file in the cache."""
        found = []
        for folder in (self._objects, self._partial):
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):  # another session made room at the same time
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_blocks * 512, entry.path))
        return found


class Partial:
    """An upload under way. Every received byte is kept if its session ends. Locked while open."""

    def __init__(self, cache: Cache, path: str, stream: BinaryIO, goal: str) -> None:
        self._cache = cache
        self._path = path
        self._goal = goal
        self._stream = stream
        self._have = self._room = 0
        self.wanted = os.path.basename(path)  # the SHA-256 of the whole file

    def rewind(self, offset: int, take: Callable[[memoryview], None]) -> bool:
        """Pass the first ``offset`` bytes to ``take`` and cut the file there; False if it is shorter."""
        if os.fstat(self._stream.fileno()).st_size < offset:
            return False
        self._stream.truncate(offset)
        self._stream.seek(0)
        for piece in pieces_of(self._stream):
            take(piece)
        self._have = self._room = offset
        return True

    def write(self, piece: memoryview) -> None:
        """Append bytes, freeing space in the cache for them. Raises OSError."""
        self._have += len(piece)
        if self._have > self._room:
            self._room = self._cache.room(self._have, self._path)
        write_all(self._stream, piece)

    def finish(self) -> None:
        """Move the whole file to the cache's objects. Raises OSError."""
        os.replace(self._path, self._goal)
        self._stream.close()

    def leave(self) -> None:
        """Close the upload; a later session resumes it."""
        self._stream.close()

    def discard(self) -> None:
        """Remove the upload: its SHA-256 is wrong, or the cache is full."""
        if not self._stream.closed:
            _forget(self._path)
            self._stream.close()


def write_all(stream: BinaryIO, piece: Any) -> None:
    """Write all of ``piece`` to an unbuffered file, whose writes may be partial. Raises OSError."""
    left = memoryview(piece)
    while left:
        left = left[stream.write(left) :]


def pieces_of(stream: BinaryIO) -> Iterator[memoryview]:
    """The rest of ``stream`` in pieces. All share one buffer: each is valid until the next."""
    buffer = memoryview(bytearray(PIECE))
    while count := stream.readinto(buffer):  # type: ignore[attr-defined]
        yield buffer[:count]


def _open(path: str, flags: int) -> BinaryIO:
    """Open a plain file, unbuffered. Raises OSError, also for links, pipes and devices."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file")
    return open(descriptor, "r+b" if flags & os.O_RDWR else "rb", buffering=0)


def _share(stream: BinaryIO, group: int) -> None:
    """Open a file to ``group``, unless it has another name elsewhere. Raises OSError."""
    if os.fstat(stream.fileno()).st_nlink == 1:
        os.fchown(stream.fileno(), -1, group)
        os.fchmod(stream.fileno(), 0o660)


def _lock(stream: BinaryIO) -> bool:
    import fcntl

    with contextlib.suppress(BlockingIOError):
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _forget(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
