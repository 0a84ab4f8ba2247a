"""Uploads and downloads under way in one session, and the cache that they may use.

An upload is a CALL and then CHUNKs of its number. With a cache the client first says what it has
(``session.offer``): a file that is known already is there at once, and an upload that broke off in an
earlier session goes on where it stopped.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from rpcsys.errors import ProtocolError, RpcsysError
from rpcsys.server import cache as caches
from rpcsys.server.session.faults import described, error_fields
from rpcsys.server.session.outgoing import Outgoing
from rpcsys.server.session.transfers import Directory, Upload, begun_elsewhere, hashed, translated
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer, Frame


class Files:
    """What moves in and out of a session's directory. ``cache``: its folder and its cap in bytes, if it has one."""

    def __init__(self, out: Outgoing, directory: Directory, cache: Optional[List[Any]]) -> None:
        self._out = out
        self._directory = directory
        self._cache = cache
        self._uploads: Dict[int, Upload] = {}

    def offer(self, name: str, size: int, digest: str) -> Dict[str, Any]:
        """Whether the file ``name`` is here by this, or from which byte on it is wanted.

        Raises `RemoteFileError`, `PathError`.
        """
        cache = self._opened(size, digest)
        if cache is None:
            return {"here": False, "offset": 0}
        target = self._directory.fresh(name)
        try:
            here = cache.place(digest, target)
        except OSError as error:
            raise translated(name, error) from None
        return {"here": here, "offset": 0 if here else cache.offset(digest, size)}

    def begin(self, frame: Frame) -> None:
        """A CALL of ``session.upload``: name, size, and with a cache the SHA-256 and the byte to begin at."""
        name, size, digest, offset = _upload_arguments(frame)
        kept = self._kept(size, digest) if digest is not None else None
        if kept is None and offset:
            raise begun_elsewhere(name)
        self._uploads[frame.call_id] = Upload(self._directory, name, frame.call_id, size, kept, offset)

    def _kept(self, size: int, digest: Any) -> Optional[caches.Partial]:
        """Where an upload outlives its session; None if this one does not."""
        cache = self._opened(size, digest)
        try:
            return None if cache is None else cache.resume(digest)
        except OSError:
            return None

    def _opened(self, size: Any, digest: Any) -> Optional[caches.Cache]:
        """The cache, if there is one and a file of that size has a place in it."""
        if not caches.valid(digest) or type(size) is not int or size < 0:
            raise ProtocolError("an offer is a size and a SHA-256 in hexadecimal digits")
        if self._cache is None or size > self._cache[1]:
            return None
        return caches.Cache(*self._cache)

    def chunk(self, frame: Frame) -> None:
        """A piece of an upload; ignored when the upload has failed already, which the client was told."""
        upload = self._uploads.get(frame.call_id)
        if upload is None:
            return
        try:
            if not upload.take(frame):
                return
            pieces = frames.encode(frames.RESULT, frame.call_id, {"r": upload.name})
        except RpcsysError as error:
            pieces = frames.encode(frames.ERROR, frame.call_id, described(error))
        del self._uploads[frame.call_id]
        upload.discard()
        self._out.send(pieces)

    def cancel(self, cancel: Frame) -> None:
        """Forget an upload. Of any other call the answer is on its way already."""
        upload = self._uploads.pop(cancel.call_id, None)
        if upload is not None:
            upload.leave()
            fields = error_fields("Cancelled", "the upload was cancelled")
            self._out.send(frames.encode(frames.ERROR, cancel.call_id, fields))

    def download(self, frame: Frame) -> List[Buffer]:
        """A CALL of ``session.download``: a name, and the byte to begin at; its RESULT, the CHUNKs sent."""
        arguments = frame.get("a")
        if not isinstance(arguments, list) or not arguments or not isinstance(arguments[0], str):
            raise ProtocolError("a download names one file")
        offset = arguments[1] if len(arguments) > 1 else 0
        if type(offset) is not int or offset < 0:
            raise ProtocolError("a download begins at a byte")
        size, pieces = self._directory.pieces(arguments[0])
        head, _ = frames.encode_head({"size": size})
        end = hashed(
            pieces, lambda piece: self._out.send(frames.pack(frames.CHUNK, frame.call_id, head, (piece,))), offset
        )
        return frames.encode(frames.RESULT, frame.call_id, {"r": end})

    def close(self) -> None:
        """The session ends: what can be resumed is left for another one, the rest is removed."""
        for upload in self._uploads.values():
            upload.leave()


def _upload_arguments(frame: Frame) -> tuple[str, int, Any, int]:
    arguments = frame.get("a")
    if not isinstance(arguments, list) or not arguments or not isinstance(arguments[0], str):
        raise ProtocolError("an upload names one file")
    name, size, digest, offset = [*arguments, *[0, None, 0][len(arguments) - 1 :]][:4]
    if type(size) is not int or type(offset) is not int or not 0 <= offset <= size:
        raise ProtocolError("an upload has a number of bytes, and begins at one of them")
    return name, size, digest, offset
