"""Files into and out of a session's directory, piece by piece."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from rpcsys.errors import RemoteFileError
from rpcsys.server.paths import confine
from rpcsys.wire.frames import LAST, Frame

PIECE = 1 << 20
#: Files of the server's own in a session's directory begin like this; a client neither sees nor names them.
_PRIVATE = ".rpcsys-"


def _sha256() -> Any:
    # OpenSSL comes with it: 3.5 MB that a bare board's waiting processes need not hold.
    import hashlib

    return hashlib.sha256()


class Directory:
    """A session's directory, by the names a client uses.

    Every method raises `PathError` for a name that leaves it, `RemoteFileError` for what the system refuses.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str) -> str:
        """The absolute path of ``name``."""
        path = confine(self.root, name)
        if os.path.basename(path).startswith(_PRIVATE):
            raise file_error(f"{name}: a name kept for the server")
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
            raise _translated(name, error) from None

    def remove(self, name: str) -> None:
        """Remove a file."""
        try:
            os.unlink(self.path(name))
        except OSError as error:
            raise _translated(name, error) from None

    def pieces(self, name: str) -> tuple[int, Iterator[bytes]]:
        """The size of a file, and its bytes in pieces."""
        try:
            stream = open(self.existing(name), "rb")  # noqa: SIM115 - closed by the generator
        except OSError as error:
            raise _translated(name, error) from None
        size = os.fstat(stream.fileno()).st_size

        def read() -> Iterator[bytes]:
            with stream:
                try:
                    while piece := stream.read(PIECE):
                        yield piece
                except OSError as error:
                    raise _translated(name, error) from None

        return size, read()


class Upload:
    """A file on its way in. It appears under its name when the last piece is there and the hash is right."""

    def __init__(self, directory: Directory, name: str, call_id: int) -> None:
        self.name = name
        self._target = directory.path(name)
        self._partial = os.path.join(directory.root, f"{_PRIVATE}{call_id}")
        self._digest = _sha256()
        try:
            os.makedirs(os.path.dirname(self._target), exist_ok=True)
            self._stream = open(self._partial, "wb", buffering=0)  # noqa: SIM115 - closed by take or discard
        except OSError as error:
            raise _translated(name, error) from None

    def take(self, frame: Frame) -> bool:
        """Write one CHUNK; whether it was the last."""
        piece = memoryview(frame.buffers[0])
        try:
            self._digest.update(piece)
            while piece:
                piece = piece[self._stream.write(piece) :]
            if not frame.flags & LAST:
                return False
            self._stream.close()
            if frame.plan.head.get("sha256") != self._digest.hexdigest():
                raise file_error(f"{self.name!r} changed on its way to the device; upload it again")
            os.replace(self._partial, self._target)
        except OSError as error:
            raise _translated(self.name, error) from None
        return True

    def discard(self) -> None:
        """Leave nothing of it behind."""
        self._stream.close()
        try:
            os.unlink(self._partial)
        except FileNotFoundError:
            pass


def hashed(pieces: Iterator[bytes], send: Callable[[bytes], None]) -> dict[str, Any]:
    """Send all ``pieces``; size and SHA-256 of what went out."""
    digest, size = _sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
        send(piece)
    return {"size": size, "sha256": digest.hexdigest()}


def file_error(message: str) -> RemoteFileError:
    """A `RemoteFileError` that says ``message``."""
    return RemoteFileError(message, type="RemoteFileError")


def _translated(name: str, error: OSError) -> RemoteFileError:
    return file_error(f"{name}: {error.strerror or error}")
