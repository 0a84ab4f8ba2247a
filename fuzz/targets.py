"""The targets: for each parser, valid inputs and a function that feeds it bytes."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzz import inference, modules, sealed, streams
from rpcsys.errors import ConfigError, ProtocolError
from rpcsys.stream import SPEEDUPS
from rpcsys.wire import frames, handshake, membership, tracker
from rpcsys.wire.frames import Frame
from rpcsys.wire.limits import Limits
from rpcsys.wire.reader import FrameReader
from rpcsys.wire.values import InOut, Out, Ref

#: The limit of a session frame's body: enough for each size of block, and small enough for any machine.
MAX_BODY = 1 << 24


@dataclass(frozen=True)
class Target:
    """One parser. ``feed`` returns or raises one of ``documented``; any other error is a finding.

    ``seal`` corrects the input's lengths, so that the damage reaches the parser of the content.
    """

    name: str
    seeds: Sequence[bytes]
    feed: Callable[[bytes, random.Random], None]
    seal: Callable[[bytes], bytes] | None = None
    documented: tuple[type[Exception], ...] = (ProtocolError,)


def slices(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """``data`` in random pieces, as from a network."""
    most = rng.choice((1, 7, 24, 100, 1 << 16, len(data) or 1))
    start = 0
    while start < len(data):
        end = start + rng.randint(1, most)
        yield data[start:end]
        start = end


# ---------------------------------------------------------------- session frames and values


def _frame(kind: int, fields: dict[str, Any], body: bytes | None = None) -> bytes:
    head, buffers = frames.encode_head(fields) if fields else (b"", [])
    return b"".join(map(bytes, frames.pack(kind, 7, head, buffers if body is None else [body])))


_ARRAY = np.arange(6, dtype="f4").reshape(2, 3)
_LARGE = _frame(frames.CALL, {"f": "large", "a": [np.zeros(30_000, "u1")]})
SESSION = (
    _frame(frames.HELLO, {"version": 1, "window": {"calls": 256, "bytes": 1 << 20}, "limit_s": 1.5}),
    _frame(frames.CALL, {"f": "testing.echo", "a": [_ARRAY, "text", b"bytes", (1, {2: 3.5}), [None, True]]}),
    _frame(frames.CALL, {"f": [3, "main"], "k": {"x": _ARRAY}, "outputs": ["y"], "keep": True}),
    _frame(frames.CALL, {"f": 9, "a": [Out((2, 0), "bfloat16"), InOut(_ARRAY), Ref(4), 2j, float("nan")]}),
    _frame(frames.RESULT, {"r": np.array(["a", "é"], object), "w": [_ARRAY, np.zeros((0, 3), "M8[ns]")]}),
    _frame(frames.RESULT, {"r": Ref(4, {"is": "module", "inputs": [{"shape": ["n", None]}]})}),
    _frame(frames.ERROR, {"type": "ValueError", "message": "x" * 5000, "traceback": "", "retryable": False}),
    _frame(frames.CHUNK, {"sha256": "0" * 64}, b"the last piece"),
    _frame(frames.FREE, {"ids": [1, 2, 3]}),
    _frame(frames.PING, {}),
    _LARGE + _LARGE,
)


def feed_session(data: bytes, rng: random.Random) -> None:
    reader = FrameReader(Limits(max_body=MAX_BODY))
    for piece in slices(data, rng):
        for frame in _receive(reader, memoryview(piece)):
            _use(frame)


def _receive(reader: FrameReader, data: memoryview) -> Iterator[Frame]:
    """Feed ``data`` to the reader as `rpcsys.stream` does."""

    def fill(place: memoryview, size: int, flags: int) -> int:
        nonlocal data
        count = min(len(place), len(data))
        place[:count] = data[:count]
        data = data[count:]
        return count

    while data:
        frame = reader.read(fill)
        while frame is not None:
            yield frame
            frame = reader.next() if reader.unread else None


def _use(frame: Frame) -> None:
    """Decode all values of a frame, as both ends do."""
    assert sum(len(buffer) for buffer in frame.buffers) <= MAX_BODY
    for value in frame.fields().values():
        repr(value)


def seal_session(data: bytes) -> bytes:
    """Correct the lengths in the header: the head is the part up to the last ``}``, the body the rest."""
    rest = data[frames.HEADER_BYTES :]
    head = rest.rfind(b"}") + 1
    header = bytearray(data[: frames.HEADER_BYTES].ljust(frames.HEADER_BYTES, b"\0"))
    if header[4] not in frames.KINDS:
        header[4] = header[4] % len(frames.KINDS) + 1
    header[6:8] = b"\0\0"
    struct.pack_into("<I", header, 0, head)
    struct.pack_into("<Q", header, 16, len(rest) - head)
    return bytes(header) + rest


# ---------------------------------------------------------------- the opening of a session


def _greeting(text: str, magic: int = handshake.MAGIC) -> bytes:
    return struct.pack("<ii", magic, len(text.encode())) + text.encode()


OPENINGS = tuple(
    map(
        _greeting,
        (
            "client:rpi4:a1b2", "client:k -timeout=2.5", "client:k -session=rpcsys/1", "server:k -server=id-7",
            "client:k -session=rpcsys/1 -serve=resnet", f"client:{sealed.KEY.name} -session=rpcsys/1",
            f"server:{sealed.KEY.name} -server=id-7 -offered=1", "client:127.0.0.1:5555:k -new=1 word",
        ),
    )
)  # fmt: skip
ANSWERS = (
    _greeting("server:rpi4"),
    _greeting("server:rpi4 -session=rpcsys/1"),
    handshake.encode_duplicate(),
    handshake.encode_mismatch(),
)


def _feeder(reader: type[handshake.OpeningReader | handshake.AnswerReader]) -> Callable[[bytes, random.Random], None]:
    def feed(data: bytes, rng: random.Random) -> None:
        made = reader()
        at = 0
        while made.needed and at < len(data):
            assert made.needed <= handshake.MAX_GREETING, "the reader needs more bytes than the longest greeting has"
            count = rng.randint(1, made.needed)
            made.receive(data[at : at + count])
            at += count
        repr(made.result)

    return feed


def seal_greeting(data: bytes) -> bytes:
    """The length made that of what follows."""
    return data[:4].ljust(4, b"\0") + struct.pack("<i", len(data[8:])) + data[8:]


# ---------------------------------------------------------------- tracker connections


def _tracker_frame(value: Any) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack("<i", len(text)) + text


TO_TRACKER = tuple(
    map(
        _tracker_frame,
        (
            [1], [2, "stop"], [3, "rpi4", [9090, "rpi4:5f0c"], None], [3, "rpi4", ["9090", "rpi4:5f0c"]],
            [4, "rpi4", "me", 1], [5, {"key": "server:rpi4", "addr": [None, 9090]}], [6], [7],
            [1, {"op": "hello", "version": "0.1.0", "capabilities": ["session/1"], "user": "me"}],
            {"op": "request", "id": 1, "key": "rpi4", "priority": 1, "session_timeout": 60, "labels": {"os": "linux"}},
            {"op": "cancel", "id": 2, "request": 1}, {"op": "release", "id": 3, "lease": "l"},
            {"op": "summary", "id": 4},
            {"op": "register", "id": 5, "key": "rpi4", "name": "n", "slots": 2, "port": 9090, "address": None,
             "labels": {}, "loads": [".onnx"], "running": [{"lease": "l", "epoch": 1, "since_s": 2.5}]},
            {"op": "lease_ended", "id": 6, "lease": "l", "epoch": 1, "outcome": "closed", "cleaned": {}},
            {"op": "via", "address": ["10.0.0.7", 40112], "proxy": [None, 9090]},
            {"id": 7, "ok": True}, {"id": 8, "ok": False, "error": "UnknownKey", "message": "no"},
        ),
    )
)  # fmt: skip
FROM_TRACKER = tuple(
    map(
        _tracker_frame,
        (
            {"id": 1, "event": "queued", "position": 1, "ahead": 0, "eta_s": None, "ticket": "t"},
            {"id": 1, "ok": True,
             "leases": [{"lease": "l", "epoch": 1, "key": "k", "host": "h", "port": 1, "matchkey": "k:1"}]},
            {"op": "taken", "id": 1, "lease": "l", "epoch": 1, "matchkey": "k:1", "user": "me",
             "address": "h", "limit_s": None},
            {"op": "end", "id": 2, "lease": "l", "epoch": 1, "reason": "gone"},
        ),
    )
)  # fmt: skip


_HASH = "0" * 64
TO_LAB = tuple(
    map(
        _tracker_frame,
        (
            [1, {"op": "hello", "version": "0", "user": "me", "token": f"rpcsys_p_aaaaaaaa_{sealed.SECRET}"}],
            [1, {"op": "hello", "version": "0", "invitation": f"aaaaaaaa.{sealed.SECRET}", "hash": _HASH}],
            {"op": "whoami", "id": 1}, {"op": "members", "id": 2, "after": "a", "limit": 10},
            {"op": "invite", "id": 3, "name": "bo", "kind": "p", "groups": ["compiler"], "lasts_s": 60.5},
            {"op": "enrol", "id": 4, "name": "rpi4-3", "kind": "b", "hash": _HASH, "keys": ["rpi4"]},
            {"op": "revoke", "id": 5, "name": "bo"}, {"op": "renew_token", "id": 6, "name": "*"},
            {"op": "replace_token", "id": 7, "hash": _HASH}, {"op": "rotate", "id": 8, "spare": "", "force": True},
            {"op": "set_open", "id": 9, "open": False}, {"op": "audit", "id": 10, "start": 1, "limit": 5},
            {"op": "find_results", "id": 11, "identities": [_HASH]},
            {"op": "keep_results", "id": 12, "results": {_HASH: [1.5e-06, 2]}},
        ),
    )
)  # fmt: skip


def _parse_to_lab(value: Any) -> Any:
    return tracker.parse_to_tracker(value, membership.TO_TRACKER)


def _tracker_feeder(parse: Callable[[Any], Any]) -> Callable[[bytes, random.Random], None]:
    def feed(data: bytes, rng: random.Random) -> None:
        reader = tracker.TrackerFrameReader(magic=rng.random() < 0.1)
        for piece in slices(data, rng):
            reader.feed(piece)
            text = reader.next()
            while text is not None:
                repr(parse(tracker.decode_json(text)))
                text = reader.next()

    return feed


def seal_tracker(data: bytes) -> bytes:
    """The length made that of what follows."""
    return struct.pack("<i", len(data[4:])) + data[4:]


TARGETS = (
    Target("library", modules.LIBRARIES, modules.feed_library, None, modules.DOCUMENTED),
    Target("tree", modules.TREES, modules.feed_tree, modules.seal_blob, modules.DOCUMENTED),
    Target("older-tree", modules.OLDER, modules.feed_older, modules.seal_blob, modules.DOCUMENTED),
    Target("module", modules.MODULES, modules.feed_module, None, modules.DOCUMENTED),
    Target("session", SESSION, feed_session, seal_session),
    *([Target("streams", streams.SEEDS, streams.feed, seal_session)] if SPEEDUPS else ()),
    Target("opening", OPENINGS, _feeder(handshake.OpeningReader), seal_greeting),
    Target("answer", ANSWERS, _feeder(handshake.AnswerReader), seal_greeting),
    Target("to-tracker", TO_TRACKER, _tracker_feeder(tracker.parse_to_tracker), seal_tracker),
    Target("to-lab", TO_LAB, _tracker_feeder(_parse_to_lab), seal_tracker),
    Target("from-tracker", FROM_TRACKER, _tracker_feeder(tracker.parse_from_tracker), seal_tracker),
    Target("records", sealed.RECORDS, sealed.feed_records, None, sealed.TLS_ERRORS),
    Target("inner-greeting", sealed.INNER, sealed.feed_inner, seal_greeting, sealed.TLS_ERRORS),
    Target("first-bytes", sealed.FIRST, sealed.feed_first, None, sealed.TLS_ERRORS),
    Target("secret-texts", sealed.TEXTS, sealed.feed_text, None, (ConfigError,)),
    *(Target(name, seeds, feed, None, inference.DOCUMENTED) for name, seeds, feed in inference.PARSERS),
)
