"""Uploads and downloads of a session's files: in pieces, never whole in memory, with a hash at the end."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
from typing import Any, BinaryIO, Callable, ContextManager, Iterator, List, Optional, Tuple, Union

from rpcsys import part
from rpcsys.client import answers
from rpcsys.client.calls import Channel, PendingCall
from rpcsys.errors import ProtocolError, RemoteFileError, UsageError
from rpcsys.wire import frames
from rpcsys.wire.checks import shown
from rpcsys.wire.frames import Frame

Progress = Callable[[int, int], None]
Report = Optional[Progress]
#: What transfers take: a function, whether to show a bar, or None: a notebook shows one, nobody else.
Asked = Union[Progress, bool, None]
Source = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview]

#: Bytes of one piece: from about 256 kB on the socket is the limit, and progress stays smooth.
PIECE = 1 << 20
#: Attempts: another session may remove the file's beginning from the cache between an offer and its upload.
_TRIES = 3


def reporting(progress: Asked, label: str) -> ContextManager[Report]:
    """What a transfer reports bytes to, while the context lasts."""
    if callable(progress) or progress is False or (progress is None and "ipykernel" not in sys.modules):
        return contextlib.nullcontext(progress or None)
    try:
        bar: ContextManager[Report] = part("rpcsys.progress").reporting(progress, label, "B")
    except ImportError:  # on a board, or with a Python that is too old
        if progress:
            raise
        return contextlib.nullcontext()
    return bar


def name_of(source: Source) -> str:
    """The default name of a source on the device. Raises `UsageError` for bytes."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        raise UsageError("bytes have no name; say what they are called on the device")
    return os.path.basename(os.fspath(source))


def path_on_device(path: Union[str, os.PathLike[str]]) -> str:
    """The name of a file that is only on the device. Raises `UsageError` for a path that must be a local one."""
    name = os.fspath(path)
    if os.path.isabs(name) or os.path.normpath(name).startswith(os.pardir) or os.path.exists(name):
        raise UsageError(f"there is no file {name!r} here: check the path")
    return name


def upload(
    channel: Channel, ask: Optional[Callable[..., Any]], source: Source, target: Optional[str], progress: Report
) -> str:
    """See `Session.upload`. With a cache on the server, ``ask`` (`Session._builtin`) offers the file first."""
    name = target or name_of(source)
    with _open_source(source) as (stream, size):
        if ask is None:
            return _send(channel, [name, size], stream, size, progress)
        sha256 = hash_of(name, stream)
        for attempt in range(_TRIES):
            offset = _wanted_from(ask("session.offer", name, size, sha256), size)
            if offset is None:
                if progress is not None:
                    progress(size, size)
                return name
            try:
                stream.seek(offset)
                return _send(channel, [name, size, sha256, offset], stream, size, progress)
            except RemoteFileError as error:
                if not error.retryable or attempt == _TRIES - 1:
                    raise
    raise AssertionError("the loop returns or raises")


def _wanted_from(offer: Any, size: int) -> Optional[int]:
    """The byte at which an upload must begin; None where the device has the file."""
    if type(offer) is not dict or type(offer.get("offset")) is not int or not 0 <= offer["offset"] <= size:
        raise ProtocolError("the device's answer to an offered file makes no sense")
    return None if offer.get("here") is True else offer["offset"]


def hash_of(name: str, stream: BinaryIO) -> str:
    """The SHA-256 of a stream from its position. Raises `UsageError`, with ``name``, if it cannot be read."""
    try:
        return _digest(stream).hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from None


def _digest(stream: BinaryIO) -> hashlib._Hash:
    digest = hashlib.sha256()
    for piece in iter(lambda: stream.read(PIECE), b""):
        digest.update(piece)
    return digest


def _send(channel: Channel, arguments: List[Any], stream: BinaryIO, size: int, progress: Report) -> str:
    """Upload ``stream`` from its position to its end."""
    template, _ = frames.template(frames.CALL, {"f": "session.upload", "a": arguments})
    call = PendingCall()
    try:
        channel.start(call, template)
        _send_pieces(channel, call, stream, size, progress, *arguments[2:3])
    except BaseException as problem:  # noqa: BLE001 - Ctrl-C, too
        channel.cancel(call)
        if isinstance(problem, OSError):
            raise UsageError(f"cannot read {arguments[0]}: {problem.strerror or problem}") from None
        raise channel.loss(problem) from None
    stored: str = answers.from_device(answers.NAME, channel.finish(call).get("r"), "upload")
    return stored


def _send_pieces(
    channel: Channel, call: PendingCall, stream: BinaryIO, size: int, progress: Report, sha256: str = ""
) -> None:
    """Send the rest of ``stream``; stop when the device has answered: it then needs no more."""
    digest = hashlib.sha256()
    done = stream.tell()
    while not call.answered:
        piece = stream.read(PIECE)
        if not sha256:
            digest.update(piece)
        done += len(piece)
        last = not piece
        fields = {"sha256": sha256 or digest.hexdigest()} if last else {}
        channel.send(frames.CHUNK, call.call_id, fields, (piece,), frames.LAST if last else 0)
        if last:
            return
        if progress is not None:
            progress(done, size)
        channel.drain()  # no other thread may read, and a refusal saves the next megabyte


@contextlib.contextmanager
def _open_source(source: Source) -> Iterator[Tuple[BinaryIO, int]]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        blob = bytes(source)
        yield io.BytesIO(blob), len(blob)
        return
    try:
        stream = open(source, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(f"cannot read {os.fspath(source)}: {error.strerror or error}") from None
    with stream:
        yield stream, os.fstat(stream.fileno()).st_size


def download(
    channel: Channel, name: str, target: Union[str, os.PathLike[str], None], progress: Report, resume: bool = False
) -> bytearray:
    """See `Session.download`."""
    if target is None:
        if resume:
            raise UsageError("only a download into a file can be resumed; say which (target=)")
        blob = bytearray()
        _receive(channel, name, blob.extend, progress)
        return blob
    target = os.path.realpath(target)  # a link stays one
    if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
        # Renamed onto a device, the file would take its place.
        raise UsageError(f"cannot write {target}: it is no file; give another name")
    # A temporary name first: a broken download must not look like the file.
    partial = os.fspath(target) + (".part" if resume else f".{os.getpid()}.part")
    try:
        with open(partial, "a+b" if resume else "w+b") as stream:
            stream.seek(0)
            digest = _digest(stream)
            _receive(channel, name, stream.write, progress, digest, stream.tell())
        os.replace(partial, target)
    except OSError as error:
        raise UsageError(f"cannot write {os.fspath(target)}: {error.strerror or error}") from None
    except ProtocolError:
        _remove(partial)  # it is no beginning of the file
        raise
    finally:
        if not resume:
            _remove(partial)
    return bytearray()


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # the write has reported the problem
        os.unlink(path)


def _receive(
    channel: Channel, name: str, write: Callable[[Any], Any], progress: Report, digest: Any = None, offset: int = 0
) -> None:
    """Receive a file from byte ``offset``. ``digest`` is the SHA-256 of the bytes before."""
    digest = digest or hashlib.sha256()
    received, size = offset, None
    problem: Optional[BaseException] = None

    def take(frame: Frame) -> None:
        # Runs in the thread that reads: an error here must fail this download, not that thread. But a device that sends
        # more than it announced breaks the session: nothing else ends it.
        nonlocal received, size, problem
        piece = frame.buffers[0]
        if size is None:
            size = frame.parsed.head.get("size")
        if type(size) is not int or len(piece) > size - received:
            raise ProtocolError(f"more of {name!r} than the {shown(size)} bytes that were announced")
        if problem is not None:
            return
        try:
            digest.update(piece)
            write(piece)
            received += len(piece)
            if progress is not None:
                progress(received, size)
        except Exception as error:  # noqa: BLE001 - it is raised again where the download waits
            problem = error

    template, _ = frames.template(frames.CALL, {"f": "session.download", "a": [name, offset] if offset else [name]})
    call = PendingCall()
    call.sink = take
    channel.start(call, template)
    end = channel.finish(call).get("r")
    if problem is not None:
        raise problem
    if end != {"size": received, "sha256": digest.hexdigest()}:
        raise ProtocolError(f"{name!r} changed on its way ({received} bytes came); download it again")
