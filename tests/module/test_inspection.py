"""Descriptions of libraries without loading them."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest

from rpcsys.errors import ModelError, UsageError
from rpcsys.ffi import library as tvm_library
from rpcsys.module import elf, elfwriter, packed
from rpcsys.module.inspection import inspect
from tests.live.artefacts import Artefacts
from tests.module.libraries import CUDA, TREE, library, older, string, tree, write
from tests.native import FUNCTIONS, compiled

WEIGHTS = [["w", "float32", [8, 8]], ["b", "float32", [8]]]
ONNX = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 8]}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": [None, 8]}],
    "weights": WEIGHTS,
}


def pack(about: dict, *buffers: bytes) -> bytes:
    return b"".join(bytes(piece) for piece in packed.pack(about, buffers, 0))


@pytest.mark.parametrize("machine", elfwriter.MACHINES, ids=lambda name: name[0])
def test_a_tree_for_any_machine(machine: tuple[str, int], tmp_path: Path) -> None:
    params = pack({"weights": WEIGHTS}, bytes(256), bytes(32))
    model = pack(ONNX, b"proto")
    path = write(
        tmp_path / "m.so",
        tree(
            ("rpcsys.group", (1, 2, 4), b""),
            ("rpcsys.onnx", (3,), model),
            ("rpcsys.onnx", (3,), model),
            ("rpcsys.params", (), params),
            ("somebody.else", (), b"\xff\xfe\xfd"),
        ),
        machine,
    )
    seen = inspect(path)
    assert (seen.layout, seen.size) == ("tvm-ffi", path.stat().st_size)
    assert seen.target == f"{machine[0]} ({machine[1]} bits)"
    assert [(module.kind, module.imports, module.size) for module in seen.modules] == [
        ("rpcsys.group", (1, 2, 4), 0),
        ("rpcsys.onnx", (3,), len(model)),
        ("rpcsys.onnx", (3,), len(model)),
        ("rpcsys.params", (), len(params)),
        ("somebody.else", (), 3),
    ]
    assert seen.modules[1].functions == ["main"]
    assert seen.modules[1].about == {**ONNX, "weights": 2}
    assert seen.modules[3].sha256 == hashlib.sha256(params).hexdigest()
    model_words = "main  inputs: x float32[n, 8]  outputs: y float32[?, 8]  2 weights"
    group, one, other, shared = ((module.size, (module.sha256 or "")[:16]) for module in seen.modules[:4])
    assert str(seen).splitlines()[1:-1] == [
        "[0] rpcsys.group  {} bytes  sha256 {}".format(*group),
        "  [1] rpcsys.onnx  {} bytes  sha256 {}  {}".format(*one, model_words),
        "    [3] rpcsys.params  {} bytes  sha256 {}  get_param, param_names  2 weights".format(*shared),
        "  [2] rpcsys.onnx  {} bytes  sha256 {}  {}".format(*other, model_words),
        "    [3] rpcsys.params (see above)",
    ]


def test_json_has_all_facts(tmp_path: Path) -> None:
    path = write(tmp_path / "m.so", tree(("rpcsys.params", (), pack({"weights": WEIGHTS}, b"a"))))
    seen = json.loads(json.dumps(inspect(path).to_json()))
    assert seen["target"] == "x86_64 (64 bits)"
    assert seen["needed"] == []
    (module,) = seen["modules"]
    assert module["about"] == {"weights": 2}
    assert len(module["sha256"]) == 64
    assert "data" not in module


def test_a_library_of_functions(tmp_path: Path) -> None:
    seen = inspect(compiled(FUNCTIONS, tmp_path / "f.so"))
    assert seen.layout == "functions"
    (root,) = seen.modules
    assert (root.kind, root.size, root.sha256) == ("_lib", 0, None)
    assert "double_it" in root.functions
    assert "_lib  x86_64 (64 bits)  " in str(seen)


def test_a_library_within(tmp_path: Path) -> None:
    inner = compiled(FUNCTIONS, tmp_path / "f.so").read_bytes()
    path = write(tmp_path / "m.so", tree(("rpcsys.library", (), pack({}, inner))), ("aarch64", 64))
    (carried,) = inspect(path).modules
    assert carried.target == "x86_64 (64 bits)"
    assert "double_it" in carried.functions


def test_stages_and_addresses_of_servers(tmp_path: Path) -> None:
    graph = {"stages": [{"name": "first"}, {"name": "second"}]}
    place = {"function": "detect", "key": "edge", "tracker": "10.0.0.1:9190", "address": ""}
    served = {"serve": "head", "function": "main", "address": "edge:9090", "encode": {"x": "int8+zlib", "y": "zstd"}}
    remotes = [("rpcsys.remote", (), pack(about)) for about in (place, served)]
    nodes = [("rpcsys.graph", (1, 2), pack(graph)), *remotes]
    _, first, second, third = str(inspect(write(tmp_path / "m.so", tree(*nodes)))).splitlines()
    assert first.endswith("  main  stages: first, second")
    assert second.endswith("  main  detect at edge 10.0.0.1:9190")
    assert third.endswith("  main  head.main at edge:9090  encoded: x int8+zlib, y zstd")


def test_the_byte_order_is_shown(tmp_path: Path) -> None:
    """A header only, of the other byte order."""
    fields = struct.pack(">HHIQQQIHHHHHH", 3, 22, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)
    (tmp_path / "s390.so").write_bytes(b"\x7fELF\2\2\1" + bytes(9) + fields)
    assert inspect(tmp_path / "s390.so").target == "s390x (64 bits, big-endian)"


def test_the_older_layout_with_and_without_a_tree(tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    path.write_bytes(library(older(("a", string(b"x")), ("_lib", b""), TREE), symbol="__tvm_dev_mblob"))
    seen = inspect(path)
    assert (seen.layout, [module.kind for module in seen.modules]) == ("tvm", ["a", "_lib"])
    path.write_bytes(library(older(("cuda", CUDA)), symbol="__tvm_dev_mblob"))
    seen = inspect(path)
    assert [(module.kind, module.imports) for module in seen.modules] == [("_lib", (1,)), ("cuda", ())]
    assert str(seen).splitlines()[2].startswith(f"  [1] cuda  {len(CUDA)} bytes")


def test_what_tvm_built(artefacts: Artefacts) -> None:
    seen = inspect(artefacts.relax)
    assert [(module.kind, module.imports) for module in seen.modules] == [("relax.VMExecutable", (1,)), ("_lib", ())]
    assert "matmul" in seen.modules[1].functions
    assert seen.modules[1].target == seen.target
    assert "addone" in inspect(artefacts.addone).modules[0].functions


def test_a_large_library_of_c_plus_plus() -> None:
    found = tvm_library.find()
    if found is None:
        pytest.skip("there is no libtvm_ffi here")
    seen = inspect(found.ffi)
    assert seen.needed
    assert seen.modules[0].functions == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "m.so is an empty file"),
        (b"#!/bin/sh", "m.so is not an ELF shared library"),
        (library(tree(("a", (), b"x" * 99)))[:-1], "m.so is cut off"),
        (library(tree(("a", (), b"x" * 99))[:-1]), "m.so is cut off or broken"),
    ],
)
def test_broken_libraries_are_an_error_of_one_sentence(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.so").write_bytes(content)
    with pytest.raises(ModelError, match=words) as error:
        inspect(tmp_path / "m.so")
    assert "\n" not in str(error.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        inspect(tmp_path / "m.so")
    with pytest.raises(UsageError, match="directory"):
        inspect(tmp_path)


def test_broken_bytes_of_one_module_do_not_hide_the_others(tmp_path: Path) -> None:
    nodes = [("rpcsys.onnx", (), b"junk"), ("rpcsys.library", (), pack({}, b"no ELF"))]
    seen = inspect(write(tmp_path / "m.so", tree(("rpcsys.group", (1, 2), b""), *nodes)))
    assert seen.modules[1].about == {}
    assert seen.modules[2].target == "no library"


def test_elf_of_a_view(tmp_path: Path) -> None:
    data = compiled(FUNCTIONS, tmp_path / "f.so").read_bytes()
    assert elf.parse(memoryview(data)) == elf.parse(data)
