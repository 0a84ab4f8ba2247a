"""Files to and from a session's directory: in pieces, never whole in memory, with a hash at the end."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Iterator, Optional, Sequence, Tuple, Union

from rpcsys.client.channel import Channel
from rpcsys.client.pending import Pending
from rpcsys.errors import ModelError, ProtocolError, UsageError
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame

if TYPE_CHECKING:
    from rpcsys.client.session import Progress, Source

#: Bytes of one piece: the socket is the limit from about 256 kB on, and progress stays smooth.
PIECE = 1 << 20


def name_of(source: Source) -> str:
    """The name a source has on the device when none is given. Raises `UsageError` for bytes."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        raise UsageError("bytes have no name; say what they are called on the device")
    return os.path.basename(os.fspath(source))


def check_loadable(name: str, loads: Sequence[str]) -> None:
    """Raise `ModelError` if a device that loads files ending in ``loads`` cannot load ``name``."""
    if not any(name.endswith(suffix) for suffix in loads):
        raise ModelError(
            "this device cannot load {!r}; it loads {}. See session.info['capabilities']".format(
                name, ", ".join(loads) or "no models (is onnxruntime installed there?)"
            ),
            type="ModelError",
        )


def upload(channel: Channel, source: Source, target: Optional[str], progress: Optional[Progress]) -> str:
    """See `Session.upload`."""
    name = target or name_of(source)
    with _open_source(source) as (stream, size):
        head, _ = frames.encode_head({"f": "session.upload", "a": [name, size]})
        pending = channel.start(head, (), lambda frame: frame.get("r"))
        try:
            _send_pieces(channel, pending, stream, size, progress)
        except BaseException as problem:
            channel.cancel(pending)
            if isinstance(problem, OSError):
                raise UsageError(f"cannot read {name}: {problem.strerror or problem}") from None
            raise
        stored: str = channel.finish(pending)
    return stored


def _send_pieces(
    channel: Channel, pending: Pending, stream: BinaryIO, size: int, progress: Optional[Progress]
) -> None:
    """Send all of ``stream``, or until the device has answered: then it wants no more."""
    digest = hashlib.sha256()
    done = 0
    while not pending.done:
        piece = stream.read(PIECE)
        digest.update(piece)
        done += len(piece)
        last = not piece
        fields = {"sha256": digest.hexdigest()} if last else {}
        channel.send(frames.CHUNK, pending.call_id, fields, (piece,), frames.LAST if last else 0)
        if last:
            return
        if progress is not None:
            progress(done, size)
        channel.drain()  # nobody else may be reading, and a refusal is worth knowing before the next megabyte


@contextlib.contextmanager
def _open_source(source: Source) -> Iterator[Tuple[BinaryIO, int]]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield io.BytesIO(source), memoryview(source).nbytes
        return
    try:
        stream = open(source, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(f"cannot read {os.fspath(source)}: {error.strerror or error}") from None
    with stream:
        yield stream, os.fstat(stream.fileno()).st_size


def download(
    channel: Channel, name: str, target: Union[str, os.PathLike[str], None], progress: Optional[Progress]
) -> bytearray:
    """See `Session.download`."""
    if target is None:
        blob = bytearray()
        _receive(channel, name, blob.extend, progress)
        return blob
    # Under a name of its own first: a broken download leaves nothing that looks like the file.
    partial = f"{os.fspath(target)}.{os.getpid()}.part"
    try:
        with open(partial, "wb") as stream:
            _receive(channel, name, stream.write, progress)
        os.replace(partial, target)
    except OSError as error:
        raise UsageError(f"cannot write {os.fspath(target)}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
    return bytearray()


def _receive(channel: Channel, name: str, write: Callable[[Any], Any], progress: Optional[Progress]) -> None:
    digest = hashlib.sha256()
    received = 0
    problem: Optional[BaseException] = None

    def take(frame: Frame) -> None:
        """Runs in whichever thread reads: what fails here must fail this download, not that thread."""
        nonlocal received, problem
        if problem is not None:
            return
        try:
            piece = frame.buffers[0]
            digest.update(piece)
            write(piece)
            received += len(piece)
            if progress is not None:
                progress(received, frame.plan.head.get("size", 0))
        except Exception as error:  # noqa: BLE001 - it is raised again where the download waits
            problem = error

    head, _ = frames.encode_head({"f": "session.download", "a": [name]})
    pending = channel.start(head, (), lambda frame: frame.get("r"), sink=take)
    end = channel.finish(pending)
    if problem is not None:
        raise problem
    if end != {"size": received, "sha256": digest.hexdigest()}:
        raise ProtocolError(f"{name!r} changed on its way ({received} bytes came); download it again")
