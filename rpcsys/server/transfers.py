"""Files into and out of a session's directory, piece by piece."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from rpcsys.errors import RemoteFileError
from rpcsys.server.cache import Partial, new_hash
from rpcsys.server.paths import confine
from rpcsys.wire.frames import LAST, Frame

PIECE = 1 << 20
#: Files of the server's own in a session's directory begin like this; a client neither sees nor names them.
_PRIVATE = ".rpcsys-"


class Directory:
    """A session's directory, by the names a client uses.

    Every method raises `PathError` for a name that leaves it, `RemoteFileError` for what the system refuses.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str, *, entry: bool = False) -> str:
        """The absolute path of ``name``; see :func:`rpcsys.server.paths.confine`."""
        path = confine(self.root, name, entry=entry)
        if os.path.basename(path).startswith(_PRIVATE):
            raise file_error(f"{name}: a name kept for the server")
        return path

    def fresh(self, name: str) -> str:
        """The absolute path of a file that is to be written, its folder made."""
        path = self.path(name)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            raise translated(name, error) from None
        return path

    def existing(self, name: str) -> str:
        """The absolute path of the file ``name``, which must be there."""
        path = self.path(name)
        if not os.path.isfile(path):
            raise file_error(f"there is no file {name!r} on the device, nor here; see session.listdir()")
        return path

    def listdir(self, name: str = ".") -> list[str]:
        """Names in a directory, sorted."""
        try:
            return sorted(entry for entry in os.listdir(self.path(name)) if not entry.startswith(_PRIVATE))
        except OSError as error:
            raise translated(name, error) from None

    def remove(self, name: str) -> None:
        """Remove a file; of a link, the link."""
        try:
            os.unlink(self.path(name, entry=True))
        except OSError as error:
            raise translated(name, error) from None

    def pieces(self, name: str) -> tuple[int, Iterator[bytes]]:
        """The size of a file, and its bytes in pieces."""
        try:
            stream = open(self.existing(name), "rb")  # noqa: SIM115 - closed by the generator
        except OSError as error:
            raise translated(name, error) from None
        size = os.fstat(stream.fileno()).st_size

        def read() -> Iterator[bytes]:
            with stream:
                try:
                    while piece := stream.read(PIECE):
                        yield piece
                except OSError as error:
                    raise translated(name, error) from None

        return size, read()


class Part:
    """A file on its way in that ends with its session. Its interface is that of `cache.Partial`."""

    wanted = None

    def __init__(self, path: str) -> None:
        self._path = path
        self.stream = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by finish or discard
        self.digest = new_hash()

    def finish(self, target: str) -> None:
        """It is whole: the file is at ``target`` now."""
        self.stream.close()
        os.replace(self._path, target)

    def discard(self) -> None:
        """Leave nothing of it behind."""
        self.stream.close()
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass

    leave = discard


class Upload:
    """A file on its way in. It appears under its name when the last piece is there and the hash is right.

    ``part``: what was begun by an earlier session, to be gone on with.
    """

    def __init__(self, directory: Directory, name: str, call_id: int, part: Partial | None = None) -> None:
        self.name = name
        self._target = directory.fresh(name)
        try:
            self._part = part or Part(os.path.join(directory.root, f"{_PRIVATE}{call_id}"))
        except OSError as error:
            raise translated(name, error) from None

    def take(self, frame: Frame) -> bool:
        """Write one CHUNK; whether it was the last."""
        piece = memoryview(frame.buffers[0])
        part = self._part
        try:
            part.digest.update(piece)
            while piece:
                piece = piece[part.stream.write(piece) :]
            if not frame.flags & LAST:
                return False
            actual = part.digest.hexdigest()
            if frame.plan.head.get("sha256") != actual or part.wanted not in (None, actual):
                raise file_error(f"{self.name!r} changed on its way to the device; upload it again")
            part.finish(self._target)
        except OSError as error:
            raise translated(self.name, error) from None
        return True

    def leave(self) -> None:
        """It breaks off here: kept for a later session where that is possible."""
        self._part.leave()

    def discard(self) -> None:
        """Leave nothing of it behind."""
        self._part.discard()


def hashed(pieces: Iterator[bytes], send: Callable[[bytes], None], offset: int = 0) -> dict[str, Any]:
    """Send all ``pieces`` but their first ``offset`` bytes; size and SHA-256 of the whole."""
    digest, size = new_hash(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
        wanted = min(size - offset, len(piece))
        if wanted > 0:
            send(piece[-wanted:])
    return {"size": size, "sha256": digest.hexdigest()}


def file_error(message: str, *, retryable: bool = False) -> RemoteFileError:
    """A `RemoteFileError` that says ``message``."""
    return RemoteFileError(message, type="RemoteFileError", retryable=retryable)


def translated(name: str, error: OSError) -> RemoteFileError:
    """What the system refused, in its own words."""
    return file_error(f"{name}: {error.strerror or error}")
