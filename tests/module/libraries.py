"""Writes libraries by hand, for any machine and in both layouts."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path

from rpcsys.module import elfwriter, layout

X86 = ("x86_64", 64)


def library(blob: bytes, machine: tuple[str, int] = X86, symbol: str = "__tvm_ffi__library_bin") -> bytes:
    """A shared library whose ``symbol`` is ``blob``."""
    made = elfwriter.MACHINES[machine]
    return elfwriter.shared_library(made, symbol, "__tvm_ffi__library_ctx", len(blob)) + blob


def write(path: Path, blob: bytes, machine: tuple[str, int] = X86) -> Path:
    path.write_bytes(library(blob, machine))
    return path


def tree(*nodes: tuple[str, Sequence[int], bytes]) -> bytes:
    """The blob of modules given as kind, imports and bytes."""
    pieces = layout.encode([(kind, imports) for kind, imports, _ in nodes], lambda number, offset: [nodes[number][2]])
    return b"".join(bytes(piece) for piece in pieces)


def string(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def vector(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers) + 1}Q", len(numbers), *numbers)


def older(*parts: tuple[str, bytes]) -> bytes:
    """A blob in the layout before tvm-ffi: kinds, and the bytes that each kind wrote."""
    body = struct.pack("<Q", len(parts)) + b"".join(string(kind.encode()) + data for kind, data in parts)
    return struct.pack("<Q", len(body)) + body


#: An import tree as a part of the older layout: the root imports the second of two.
TREE = ("_import_tree", vector(0, 1, 1) + vector(1))
#: Bytes of the kind ``cuda``: a format, one function with two arguments and one tag, and the code.
CUDA = (
    string(b"ptx")
    + struct.pack("<Q", 1)
    + string(b"add_kernel")
    + string(b"add_kernel")
    + struct.pack("<Q", 2)
    + b"\2\x20\1\0" * 2
    + struct.pack("<Q", 1)
    + string(b"blockIdx.x")
    + string(b".version 7.0 and so on")
)


def strings(*texts: bytes) -> bytes:
    return struct.pack("<Q", len(texts)) + b"".join(map(string, texts))


def weight(*extents: int, item: bytes = bytes(4)) -> bytes:
    """An array of float32 as TVM saves it: number, reserved, device, rank, element type, extents, length, bytes."""
    head = struct.pack("<QQiii", 0xDD5E40F096B4A13F, 0, 1, 0, len(extents)) + b"\2\x20\1\0"
    return head + struct.pack(f"<{len(extents)}q", *extents) + string(item * math.prod(extents))


#: Bytes of kinds that wrote more than one string, as TVM 0.8 to 0.20 did.
FACTORY = string(b'{"nodes": []}') + struct.pack("<Q", 2) + strings(b"p0", b"p1") + weight(2, 3) + weight()
FACTORY += string(b"default")
CONSTANTS = strings(b"c") + struct.pack("<Q", 1) + weight(4) + strings(b"f", b"g") + struct.pack("<Q", 2)
CONSTANTS += strings(b"c") + strings()
OLDER_KINDS = {
    "cuda": CUDA,
    "hip": CUDA,
    "opencl": CUDA,
    "GraphExecutorFactory": FACTORY,
    "GraphRuntimeFactory": FACTORY,
    "AotExecutorFactory": FACTORY[len(string(b'{"nodes": []}')) :],
    "const_loader": CONSTANTS,
    "metadata": CONSTANTS,
    "static_library": string(b"\x7fELF and so on") + strings(b"f", b"g"),
}
