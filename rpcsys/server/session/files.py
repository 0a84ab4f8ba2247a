"""Uploads and downloads of one session, with or without a cache.

With one, ``session.offer`` comes first: it places a cached file at once, or resumes an earlier session's upload.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Optional

from rpcsys.errors import ProtocolError, RemoteFileError, RpcsysError
from rpcsys.module.module import running_call
from rpcsys.server.cache import Cache, Partial, new_hash, valid, write_all
from rpcsys.server.session.directory import Directory, file_errors
from rpcsys.server.session.outgoing import Outgoing, error_frame, exception_frame
from rpcsys.wire import frames
from rpcsys.wire.frames import LAST, Buffer, Frame


class Files:
    """Uploads to and downloads from a session's directory. ``cache``: the cache's folder, and its limit in bytes."""

    def __init__(self, out: Outgoing, directory: Directory, cache: Optional[list[Any]] = None) -> None:
        self._out = out
        self.directory = directory
        self._cache = cache
        self._uploads: dict[int, Upload] = {}

    def offer(self, name: str, size: int, digest: str) -> dict[str, Any]:
        """Place ``name`` from the cache; else return the ``offset`` to upload from. Raises as `Directory` does."""
        cache = self._opened(size, digest)
        if cache is None:
            return {"here": False, "offset": 0}
        target = self.directory.fresh(name)
        with file_errors(name):
            here = cache.place(digest, target)
        return {"here": here, "offset": 0 if here else cache.offset(digest, size)}

    def begin(self, frame: Frame) -> list[Buffer]:
        """Begin a ``session.upload``: name, size and, with a cache, SHA-256 and first byte. Its answer comes later."""
        args = _arguments(frame, "an upload names one file")
        name, size, digest, offset = [*args, *(0, None, 0)[len(args) - 1 :]][:4]
        if type(size) is not int or type(offset) is not int or not 0 <= offset <= size:
            raise ProtocolError("an upload has a number of bytes, and begins at one of them")
        cached = self._resumed(size, digest) if digest is not None else None
        if cached is None and offset:
            raise begun_elsewhere(name)
        self._uploads[frame.call_id] = Upload(self.directory, name, frame.call_id, size, cached, offset)
        return []

    def _resumed(self, size: int, digest: Any) -> Optional[Partial]:
        """The cache's partial file of an upload; None if the upload is not cached."""
        cache = self._opened(size, digest)
        with contextlib.suppress(OSError):
            return None if cache is None else cache.resume(digest)
        return None

    def _opened(self, size: Any, digest: Any) -> Optional[Cache]:
        """The cache, if there is one and a file of ``size`` bytes fits in it. Raises `ProtocolError`."""
        if not valid(digest) or type(size) is not int or size < 0:
            raise ProtocolError("an offer is a size and a SHA-256 in hexadecimal digits")
        return Cache(*self._cache) if self._cache is not None and size <= self._cache[1] else None

    def chunk(self, frame: Frame) -> None:
        """Take a piece of an upload; ignored if the upload has failed, which the client knows."""
        upload = self._uploads.get(frame.call_id)
        if upload is None:
            return
        try:
            if not upload.take(frame):
                return
            pieces = frames.encode(frames.RESULT, frame.call_id, {"r": upload.name})
        except RpcsysError as error:
            pieces = exception_frame(frame.call_id, error)
        del self._uploads[frame.call_id]
        upload.discard()
        self._out.send(pieces)

    def cancel(self, cancel: Frame) -> None:
        """Cancel an upload. Any other call has been answered already."""
        upload = self._uploads.pop(cancel.call_id, None)
        if upload is not None:
            upload.leave()
            self._out.send(error_frame(cancel.call_id, "Cancelled", "the upload was cancelled"))

    def download(self, frame: Frame) -> list[Buffer]:
        """Answer a ``session.download`` of a name and a first byte: send the CHUNKs, return the RESULT."""
        args = _arguments(frame, "a download names one file")
        offset = args[1] if len(args) > 1 else 0
        if type(offset) is not int or offset < 0:
            raise ProtocolError("a download begins at a byte")
        size, pieces = self.directory.pieces(args[0])
        head, _ = frames.encode_head({"size": size})
        stopped = threading.Event()

        def send(piece: bytes) -> None:
            if stopped.is_set():
                raise RemoteFileError("the download was stopped")
            self._out.send(frames.pack(frames.CHUNK, frame.call_id, head, (piece,)))

        with running_call.stopped_by(stopped.set):
            end = hashed(pieces, send, offset)
        return frames.encode(frames.RESULT, frame.call_id, {"r": end})

    def close(self) -> None:
        """At the session's end, keep uploads that can be resumed, and remove the others."""
        for upload in self._uploads.values():
            upload.leave()


def _arguments(frame: Frame, text: str) -> list[Any]:
    args = frame.get("a")
    if not isinstance(args, list) or not args or not isinstance(args[0], str):
        raise ProtocolError(text)
    return args


class Upload:
    """An upload of ``size`` bytes. The file appears under its name when it is complete and its hash matches.

    ``cached``: its partial file in the cache, with the first ``offset`` bytes from an earlier session.
    """

    def __init__(
        self,
        directory: Directory,
        name: str,
        call_id: int,
        size: int,
        cached: Optional[Partial] = None,
        offset: int = 0,
    ) -> None:
        self.name = name
        self._size = size
        self._left = size - offset
        self._cached = cached
        self._wanted = cached.wanted if cached is not None else None
        self._resumed = bool(offset)
        self._digest = new_hash()
        self._target = directory.fresh(name)
        self._path = directory.private(call_id)
        with file_errors(name):
            self._stream = open(self._path, "wb", buffering=0)  # noqa: SIM115 - closed by `discard`
            if cached is not None and not cached.rewind(offset, self._write):
                self.leave()
                raise begun_elsewhere(name)

    def take(self, frame: Frame) -> bool:
        """Write one CHUNK; return whether it was the last. Raises `ProtocolError` beyond the announced size."""
        piece = memoryview(frame.buffers[0])
        self._left -= len(piece)
        if self._left < 0:
            text = f"{self.name!r} is longer than the {self._size} bytes announced; did it change meanwhile?"
            raise ProtocolError(text)
        with file_errors(self.name):
            self._write(piece)
            self._to_cache(lambda cached: cached.write(piece))
            if not frame.flags & LAST:
                return False
            actual = self._digest.hexdigest()
            if self._left or frame.parsed.head.get("sha256") != actual or self._wanted not in (None, actual):
                text = f"{self.name!r} changed on its way to the device; upload it again"
                # Bytes that an earlier session left may be the cause; they are removed.
                raise RemoteFileError(text, retryable=self._resumed)
            os.replace(self._path, self._target)
        self._to_cache(Partial.finish)
        return True

    def _write(self, piece: Any) -> None:
        self._digest.update(piece)
        write_all(self._stream, piece)

    def _to_cache(self, do: Callable[[Partial], None]) -> None:
        """Write to the cache; if that fails, continue the upload without it."""
        try:
            if self._cached is not None:
                do(self._cached)
        except OSError:
            self._drop_cached()

    def _drop_cached(self) -> None:
        cached, self._cached = self._cached, None
        if cached is not None:
            cached.discard()

    def leave(self) -> None:
        """Interrupt the upload; a cached one is kept for a later session."""
        if self._cached is not None:
            self._cached.leave()
        self.discard()

    def discard(self) -> None:
        """Remove the upload's files."""
        self._drop_cached()
        self._stream.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def hashed(pieces: Iterator[bytes], send: Callable[[bytes], None], offset: int = 0) -> dict[str, Any]:
    """Send all ``pieces`` but their first ``offset`` bytes; return size and SHA-256 of the whole."""
    digest, size = new_hash(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
        wanted = min(size - offset, len(piece))
        if wanted > 0:
            send(piece[-wanted:])
    return {"size": size, "sha256": digest.hexdigest()}


def begun_elsewhere(name: str) -> RemoteFileError:
    """The error for an upload to resume whose first bytes are gone."""
    return RemoteFileError(f"{name}: what an earlier session left of it is gone; upload it again", retryable=True)
