"""Files kept between sessions by their SHA-256, so that the same model is sent to a board once.

``objects/HASH`` are whole files, read-only; ``partial/HASH`` are uploads that broke off, to be resumed
by a later session. A session is given a hard link (a copy where file systems differ: ``ways`` lead past
mounts of a session's own, which the system does not link across either), and the hash
is computed again each time: a file that a session has damaged, or a bad disk, costs one more upload
and is never used. What was not used for longest goes first when the cache is full.

Several session processes use one folder at the same time: objects appear by rename, and a partial file
is locked by the one that writes it. Known weakness: a session runs with the server's rights and could
change an object while another session uses its link; sessions of one board trust each other that far.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Any, BinaryIO, Callable, List, Optional, Sequence, Tuple

from rpcsys.errors import ConfigError

_NAME = re.compile(r"[0-9a-f]{64}\Z")
_PIECE = 1 << 20


def valid(digest: Any) -> bool:
    """Whether ``digest`` is a SHA-256 in lower-case hexadecimal digits."""
    return isinstance(digest, str) and _NAME.match(digest) is not None


def new_hash() -> Any:
    """An empty SHA-256. Loaded when it is first needed: it brings OpenSSL along, 3.5 MB of a board's memory."""
    import hashlib

    return hashlib.sha256()


class Cache:
    """A folder of files by content, at most ``cap`` bytes of them.

    ``ways``: directories, and by which other path a link is made to and from each.

    Raises `ConfigError` when the folder cannot be made or written to.
    """

    def __init__(self, folder: str, cap: int, ways: Sequence[Sequence[str]] = ()) -> None:
        self._objects = os.path.join(folder, "objects")
        self._partial = os.path.join(folder, "partial")
        self._cap = cap
        self._ways = ways
        try:
            for path in (self._objects, self._partial):
                os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot use {folder} as a cache: {error.strerror or error}") from None

    def place(self, digest: str, target: str) -> bool:
        """Put the file of that content at the path ``target``; False when it is not here, or damaged.

        Raises OSError when ``target`` cannot be written.
        """
        path = os.path.join(self._objects, digest)
        try:
            with open(path, "rb") as stream:
                sound = hash_of(stream) == digest
            if not sound:
                os.unlink(path)
                return False
            os.utime(path)
            _link(path, target, self._ways)
        except FileNotFoundError:  # perhaps only now: another session made room
            return False
        return True

    def resume(self, digest: str, size: int) -> Optional[Partial]:
        """The upload of that content, ``size`` bytes when it is whole, as far as an earlier session got with it.

        None while another session writes it. Raises OSError.
        """
        path = os.path.join(self._partial, digest)
        stream = open(path, "a+b", buffering=0)  # noqa: SIM115 - the partial's own from here on
        if not _lock(stream):
            stream.close()
            return None
        os.utime(path)
        self._make_room(size, path)
        return Partial(path, stream, digest, os.path.join(self._objects, digest), self._ways)

    def offset(self, digest: str) -> int:
        """How many bytes of that content an earlier session left."""
        try:
            return os.stat(os.path.join(self._partial, digest)).st_size
        except FileNotFoundError:
            return 0

    def _make_room(self, wanted: int, spared: str) -> None:
        """Remove what was not used for longest until ``wanted`` bytes fit under the cap in place of ``spared``."""
        files = [entry for entry in self._files() if entry[2] != spared]
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total + wanted <= self._cap:
                return
            if not self._in_use(path):
                _forget(path)
                total -= size

    def _in_use(self, path: str) -> bool:
        """Whether a session is writing that file now."""
        if os.path.dirname(path) != self._partial:
            return False
        try:
            with open(path, "rb") as stream:
                return not _lock(stream)
        except FileNotFoundError:
            return False

    def _files(self) -> List[Tuple[float, int, str]]:
        """Time of last use, bytes and path of all that is kept."""
        found = []
        for folder in (self._objects, self._partial):
            for entry in os.scandir(folder):
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue  # another session made room at the same time
                found.append((status.st_mtime, status.st_blocks * 512, entry.path))
        return found


class Partial:
    """An upload under way, of which every byte that arrived outlives its session. Locked while open.

    Attributes
    ----------
    stream : to be written to
    digest : the SHA-256 of what is there
    wanted : what that must be in the end
    """

    def __init__(
        self, path: str, stream: BinaryIO, wanted: str, goal: str, ways: Sequence[Sequence[str]]
    ) -> None:
        self._path = path
        self._goal = goal
        self._ways = ways
        self.stream = stream
        self.wanted = wanted
        self.digest = new_hash()

    def rewind(self, offset: int) -> bool:
        """Go on behind the first ``offset`` bytes; False if there are not so many."""
        if os.fstat(self.stream.fileno()).st_size < offset:
            return False
        self.stream.truncate(offset)
        self.stream.seek(0)
        feed(self.stream, self.digest.update)
        return True

    def finish(self, target: str) -> None:
        """It is whole, and kept from now on; the file is at ``target``, too. Raises OSError."""
        os.fchmod(self.stream.fileno(), 0o444)
        os.replace(self._path, self._goal)
        self.stream.close()
        _link(self._goal, target, self._ways)

    def leave(self) -> None:
        """Keep what there is for a later session."""
        self.stream.close()

    def discard(self) -> None:
        """Remove it: its content is not what it was said to be."""
        if not self.stream.closed:
            _forget(self._path)
            self.stream.close()


def hash_of(stream: BinaryIO) -> str:
    """The SHA-256 of the rest of ``stream``, in hexadecimal digits."""
    digest = new_hash()
    feed(stream, digest.update)
    return str(digest.hexdigest())


def feed(stream: BinaryIO, take: Callable[[Any], Any]) -> None:
    """Give the rest of ``stream`` to ``take``, in pieces that share one buffer."""
    buffer = memoryview(bytearray(_PIECE))
    read = stream.readinto  # type: ignore[attr-defined]
    count = read(buffer)
    while count:
        take(buffer[:count])
        count = read(buffer)


def _link(path: str, target: str, ways: Sequence[Sequence[str]]) -> None:
    """The same file under another name, or a copy of it on another file system."""
    _forget(target)
    for names in ((path, target), (_by(path, ways), _by(target, ways))):
        try:
            os.link(*names)
            return
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EROFS):
                raise
    _copy(path, target)


def _by(path: str, ways: Sequence[Sequence[str]]) -> str:
    """``path`` by the way that leads there."""
    for place, way in ways:
        if path.startswith(os.path.join(place, "")):
            return way + path[len(place.rstrip("/")) :]
    return path


def _copy(path: str, target: str) -> None:
    # shutil would do, and load four compression libraries that a board's waiting processes need not hold.
    with open(path, "rb") as source, open(target, "wb") as copy:
        feed(source, copy.write)
    os.chmod(target, 0o444)


def _lock(stream: BinaryIO) -> bool:
    import fcntl

    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
