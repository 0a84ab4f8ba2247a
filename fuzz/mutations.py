"""Mutations of valid bytes that find parsers' faults. All randomness comes from ``rng``."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

#: Limits of lengths, offsets and signs.
_EDGES = (0, 1, 2, 23, 24, 63, 64, 127, 128, 255, 256, 4095, 4096, 0xFFFF, 1 << 16, 1 << 20, (1 << 20) + 1,
          (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 33, 1 << 36, 1 << 62, (1 << 63) - 1,
          1 << 63, (1 << 64) - 1)  # fmt: skip
#: Pieces of JSON, of our messages and of TVM's.
_WORDS = (
    b"null", b"true", b"-1", b"1e999", b"NaN", b"[]", b"{}", b'""', b'"@"', b'{"@":"tensor"}',
    b'{"@":"bytes","size":1,"buffer":0}', b'"float32"', b'"S0"', b'"shape":[0]', b'"shape":[9223372036854775807]',
    b'"buffer":0', b'"size":-1', b"\\ud800", b"\xff", b"\0", b'"op"', b'"id"', b'"ok"', b'"event"', b"[" * 70,
    b"9" * 5000, b"-session=rpcsys/1", b" -timeout=1e400", b"client:", b"server:",
)  # fmt: skip


def damage(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """``data`` after one to six mutations; ``others`` are inputs to splice with."""
    blob = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        rng.choice(_MUTATIONS)(blob, others, rng)
    return bytes(blob[: 1 << 17])


def _place(blob: bytearray, rng: random.Random) -> int:
    # Half of the places are in the header, which has the lengths.
    return rng.randint(0, min(len(blob), 32)) if rng.random() < 0.5 else rng.randint(0, len(blob))


def _flip(blob: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    if blob:
        blob[min(_place(blob, rng), len(blob) - 1)] ^= 1 << rng.randrange(8)


def _byte(blob: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    if blob:
        blob[min(_place(blob, rng), len(blob) - 1)] = rng.randrange(256)


def _edge(blob: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    width, code = rng.choice(((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q")))
    at = _place(blob, rng)
    blob[at : at + width] = struct.pack(code, rng.choice(_EDGES) % (1 << 8 * width))


def _cut(blob: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    start = _place(blob, rng)
    del blob[start : start + rng.randint(1, 40)]


def _end(blob: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    del blob[_place(blob, rng) :]


def _word(blob: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    at = _place(blob, rng)
    blob[at : at + rng.choice((0, 0, 1, 4, 12))] = rng.choice(_WORDS)


def _noise(blob: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    at = _place(blob, rng)
    blob[at:at] = rng.randbytes(rng.randint(1, 60))


def _twice(blob: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    start = _place(blob, rng)
    blob[start:start] = blob[start : start + rng.randint(1, 80)]


def _splice(blob: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    other = rng.choice(others)
    blob[_place(blob, rng) :] = other[rng.randint(0, len(other)) :]


_MUTATIONS: tuple[Callable[[bytearray, Sequence[bytes], random.Random], None], ...] = (
    _flip, _byte, _edge, _edge, _cut, _end, _word, _word, _noise, _twice, _splice,
)  # fmt: skip
