"""Files into and out of a session's directory, piece by piece."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Optional

from rpcsys.errors import ProtocolError, RemoteFileError
from rpcsys.server.cache import Partial, new_hash, write_all
from rpcsys.server.session.paths import confine
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
        """The absolute path of ``name``; see :func:`rpcsys.server.session.paths.confine`."""
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


class Upload:
    """A file of ``size`` bytes on its way in. It appears under its name when the last piece is there and the hash is right.

    ``kept``: where it outlives its session, with the first ``offset`` bytes of it, which an earlier session left.
    """

    def __init__(
        self, directory: Directory, name: str, call_id: int, size: int, kept: Optional[Partial] = None, offset: int = 0
    ) -> None:
        self.name = name
        self._size = size
        self._left = size - offset
        self._kept = kept
        self._wanted = kept.wanted if kept is not None else None
        self._resumed = bool(offset)
        self._digest = new_hash()
        self._target = directory.fresh(name)
        self._path = os.path.join(directory.root, f"{_PRIVATE}{call_id}")
        try:
            self._stream = open(self._path, "wb", buffering=0)  # noqa: SIM115 - closed by `discard`
            if kept is not None and not kept.rewind(offset, self._write):
                self.leave()
                raise begun_elsewhere(name)
        except OSError as error:
            raise translated(name, error) from None

    def take(self, frame: Frame) -> bool:
        """Write one CHUNK; whether it was the last. Raises `ProtocolError` for more than was announced."""
        piece = memoryview(frame.buffers[0])
        self._left -= len(piece)
        if self._left < 0:
            raise ProtocolError(
                f"{self.name!r} is longer than the {self._size} bytes announced; did it change meanwhile?"
            )
        try:
            self._write(piece)
            self._keep(piece)
            if not frame.flags & LAST:
                return False
            actual = self._digest.hexdigest()
            if frame.parsed.head.get("sha256") != actual or self._wanted not in (None, actual):
                text = f"{self.name!r} changed on its way to the device; upload it again"
                raise file_error(text, retryable=self._resumed)  # what was left of it may be the cause, and goes
            os.replace(self._path, self._target)
        except OSError as error:
            raise translated(self.name, error) from None
        self._finish_kept()
        return True

    def _write(self, piece: Any) -> None:
        self._digest.update(piece)
        write_all(self._stream, piece)

    def _keep(self, piece: memoryview) -> None:
        """What cannot be kept arrives all the same."""
        try:
            if self._kept is not None:
                self._kept.write(piece)
        except OSError:
            self._drop_kept()

    def _finish_kept(self) -> None:
        try:
            if self._kept is not None:
                self._kept.finish()
        except OSError:
            self._drop_kept()

    def _drop_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.discard()

    def leave(self) -> None:
        """It breaks off here: kept for a later session where that is possible."""
        if self._kept is not None:
            self._kept.leave()
        self.discard()

    def discard(self) -> None:
        """Leave nothing of it behind."""
        self._drop_kept()
        self._stream.close()
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass


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
    return RemoteFileError(message, retryable=retryable)


def begun_elsewhere(name: str) -> RemoteFileError:
    """For an upload that is to go on where there is nothing to go on with."""
    return file_error(f"{name}: what an earlier session left of it is gone; upload it again", retryable=True)


def translated(name: str, error: OSError) -> RemoteFileError:
    """What the system refused, in its own words."""
    return file_error(f"{name}: {error.strerror or error}")
