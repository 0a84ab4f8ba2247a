"""Libraries and their modules, damaged anywhere from the ELF header to the stored bytes of a kind."""

from __future__ import annotations

import random
import struct
import zlib

from rpcsys.errors import ModelError
from rpcsys.module import container, elfwriter, layout, packed, registry
from rpcsys.module.elf import ElfError
from rpcsys.module.layout import FormatError, Record
from rpcsys.module.module import Module
from rpcsys.module.registry import Context

#: The errors for broken libraries and modules.
DOCUMENTED = (ElfError, FormatError, ModelError)
_WEIGHTS = [["bias", "float32", [2, 3]], ["w", "uint8", [5]]]


def _packed(about: dict[str, object], *buffers: bytes) -> bytes:
    return b"".join(bytes(piece) for piece in packed.pack(about, buffers, 0))


_VALUE = {"name": "x", "dtype": "float32", "shape": ["n", 3]}
_ONNX = {"inputs": [_VALUE], "outputs": [_VALUE], "options": {"threads": 1}, "weights": _WEIGHTS}
_STAGE = {"name": "s", "module": 0, "function": "f", "inputs": ["x", "w"], "outputs": ["y"]}
_GRAPH = {
    "inputs": [_VALUE],
    "outputs": [{"name": "y"}],
    "weights": ["w"],
    "imports": ["rpcsys.library", "rpcsys.params"],
    "stages": [{**_STAGE, "makes": [{"dtype": "float32", "shape": ["n", 3]}]}],
}
_PLACE = {"function": "f", "key": "k", "tracker": "", "address": "127.0.0.1:9090", "wait_s": 1.5}
#: Modules as kind, imports and bytes.
_MODULES = (
    ("rpcsys.group", (1, 2, 4, 5, 7, 8), _packed({"functions": ["main", "get_param"]})),
    ("rpcsys.onnx", (3,), _packed({**_ONNX, "shared": [["s", "float16", [9]]]}, b"proto", bytes(24), bytes(5))),
    ("rpcsys.onnx", (3,), _packed({**_ONNX, "shared": [], "weights": []}, b"proto")),
    ("rpcsys.params", (), _packed({"weights": _WEIGHTS}, bytes(24), bytes(5))),
    ("_lib", (), b""),
    ("rpcsys.graph", (6, 3), _packed(_GRAPH)),
    (
        "rpcsys.library",
        (),
        _packed(
            {"name": "f.so", "target": "t", "machine": "arm", "bits": 32, "kinds": ["k"], "functions": ["f"]}, b"ELF"
        ),
    ),
    ("rpcsys.remote", (), _packed({**_PLACE, "inputs": [_VALUE], "outputs": []})),
    ("rpcsys.onnx", (), _packed({**_ONNX, "shared": [], "weights": [], "deflated": True}, zlib.compress(b"proto"))),
)


def _tree(*modules: tuple[str, tuple[int, ...], bytes]) -> bytes:
    nodes = [(kind, imports) for kind, imports, _ in modules]
    return b"".join(bytes(piece) for piece in layout.encode(nodes, lambda number, _: [modules[number][2]]))


def _string(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _older(*parts: tuple[str, bytes]) -> bytes:
    body = struct.pack("<Q", len(parts)) + b"".join(_string(kind.encode()) + data for kind, data in parts)
    return _string(body)


_CUDA = (
    _string(b"ptx")
    + struct.pack("<Q", 1)
    + _string(b"f") * 2
    + struct.pack("<Q", 1)
    + b"\2\x20\1\0"
    + struct.pack("<Q", 1)
    + _string(b"tag") * 2
)
#: A count, one name and one weight of two float32.
_WEIGHTS_OLDER = struct.pack("<2Q", 1, 1) + _string(b"w") + struct.pack("<QQiii", 0xDD5E40F096B4A13F, 0, 1, 0, 1)
_WEIGHTS_OLDER += b"\2\x20\1\0" + struct.pack("<q", 2) + _string(bytes(8))
_EDGES = struct.pack("<5Q", 3, 0, 1, 1, 1) + struct.pack("<Q", 1)
_ROWS = ("_import_tree", _EDGES)

TREES = (_tree(*_MODULES), _tree(_MODULES[3]), _tree(("a", (1, 2), b"x"), ("b", (2,), b"y"), ("_lib", (), b"")))
OLDER = (
    _older(("a", _string(b"x")), ("_lib", b""), _ROWS),
    _older(("cuda", _CUDA)),
    _older(("other", _string(b"weights")), ("hip", _CUDA)),
    _older(("GraphExecutorFactory", _string(b"{}") + _WEIGHTS_OLDER + _string(b"name")), ("_lib", b"")),
)
MODULES = tuple(kind.encode() + b"\0" + data for kind, _, data in _MODULES if data)


def _library(blob: bytes, machine: tuple[str, int], symbol: str) -> bytes:
    return elfwriter.shared_library(elfwriter.MACHINES[machine], symbol, "ctx", len(blob)) + blob


LIBRARIES = (
    _library(TREES[0], ("x86_64", 64), "__tvm_ffi__library_bin"),
    _library(TREES[2], ("arm", 32), "__tvm_ffi__library_bin"),
    _library(OLDER[0], ("riscv", 64), "__tvm_dev_mblob"),
    elfwriter.function_library(elfwriter.MACHINES["aarch64", 64], {"__tvm_ffi_main": 1 << 40}),
)


def feed_library(data: bytes, rng: random.Random) -> None:
    found = container.parse(data)
    found.elf.undefined()
    _check(found.records)


def feed_tree(data: bytes, rng: random.Random) -> None:
    _check(layout.decode(memoryview(data)))


def feed_older(data: bytes, rng: random.Random) -> None:
    _check(layout.decode_older(memoryview(data)))


def _check(records: list[Record]) -> None:
    """Check a tree: each import is one of its modules, and there is no cycle."""
    assert records
    assert sorted(layout.in_order(records)) == list(range(len(records)))
    for record in records:
        assert all(0 <= child < len(records) for child in record.imports)


def feed_module(data: bytes, rng: random.Random) -> None:
    """Feed one module: the name of its kind, a zero byte, and its bytes."""
    kind, _, stored = data.partition(b"\0")
    context = Context("fuzzed", _no_library)
    module = registry.find(kind.decode("utf-8", "replace")).load_from_bytes(memoryview(stored), context)
    assert isinstance(module, Module)
    module.close()


def _no_library() -> Module:
    raise ModelError("it came without a library", type="ModelError")


def seal_blob(data: bytes) -> bytes:
    """Correct the byte count at the start."""
    return struct.pack("<Q", max(len(data) - 8, 0)) + data[8:]
