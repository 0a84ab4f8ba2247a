"""What a device cannot load is said before it is sent there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rpcsys.client import loadable
from rpcsys.errors import ModelError
from rpcsys.module import elf, export_library, group, library, packed, params, python
from rpcsys.module.module import Module
from tests.module import libraries
from tests.module.trees import Holder, bytes_kind
from tests.native import FUNCTIONS, compiled

__all__ = ["bytes_kind"]

HERE = list(elf.here())
DEVICE = {
    "loads": [".so"],
    "kinds": ["_lib", "rpcsys.group", "rpcsys.library", "rpcsys.params"],
    "target": HERE,
    "tvm_runtime": False,
}


def exported(folder: Path, root: Module, **more: str) -> Path:
    export_library(root, folder / "model.so", **more)
    return folder / "model.so"


def test_what_it_can_load(tmp_path):
    path = exported(tmp_path, group([params({"w": np.ones(3)})]))
    loadable.check(path, "model.so", DEVICE)
    loadable.check(path.read_bytes(), "model.so", DEVICE)
    loadable.check(compiled(FUNCTIONS, tmp_path / "f.so"), "f.so", DEVICE)


def test_a_kind_that_the_device_lacks_is_named_with_those_it_has(tmp_path):
    path = exported(tmp_path, group([python({"f": print}), params({"w": np.ones(3)})]))
    for runtime in (False, True):
        with pytest.raises(
            ModelError,
            match=r"model.so holds rpcsys\.python, which this device cannot load \(Python functions: only where .*\); "
            r"it loads _lib, rpcsys\.group, rpcsys\.library, rpcsys\.params",
        ) as caught:
            loadable.check(path, "model.so", {**DEVICE, "tvm_runtime": runtime})
        assert "\n" not in str(caught.value)


def carrying(kind: str, data: bytes = b"") -> bytes:
    """A library that holds a module of that kind, whoever loads it."""
    return libraries.library(libraries.tree((kind, (), data)), elf.here())


def test_what_tvm_may_know_is_left_to_it(tmp_path):
    program = carrying("relax.VMExecutable")
    loadable.check(program, "model.so", {**DEVICE, "tvm_runtime": True})
    with pytest.raises(ModelError, match=r"holds relax\.VMExecutable, which this device cannot load; it loads _lib"):
        loadable.check(program, "model.so", DEVICE)
    with pytest.raises(ModelError, match=r"holds rpcsys\.other"):
        loadable.check(carrying("rpcsys.other"), "model.so", {**DEVICE, "tvm_runtime": True})


@pytest.mark.usefixtures("bytes_kind")
def test_among_our_kinds_another_is_not_left_to_tvm(tmp_path):
    path = exported(tmp_path, group([Holder(b"")]))
    with pytest.raises(ModelError, match=r"holds testing\.bytes, which this device cannot load"):
        loadable.check(path, "model.so", {**DEVICE, "tvm_runtime": True})
    loadable.check(path, "model.so", {**DEVICE, "kinds": [*DEVICE["kinds"], "testing.bytes"]})


def test_another_machine(tmp_path):
    path = exported(tmp_path, params({"w": np.ones(3)}), toolchain="aarch64-linux-gnu")
    with pytest.raises(
        ModelError, match=r"model.so is built for aarch64 \(64 bits\), and the device is x86_64 \(64 bits\)"
    ):
        loadable.check(path, "model.so", {**DEVICE, "target": ["x86_64", 64]})
    loadable.check(path, "model.so", {**DEVICE, "target": ["aarch64", 64]})


def test_libraries_inside_are_looked_at_too(tmp_path):
    program = library(carrying("relax.VMExecutable"), name="program.so")
    inner = exported(tmp_path, group([program]))
    loadable.check(inner, "model.so", {**DEVICE, "tvm_runtime": True})
    with pytest.raises(ModelError, match=r"holds relax\.VMExecutable"):
        loadable.check(inner, "model.so", DEVICE)
    foreign = exported(tmp_path, params({}), toolchain="aarch64-linux-gnu").read_bytes()
    with pytest.raises(ModelError, match=r"board.so is built for aarch64"):
        loadable.check(exported(tmp_path, group([library(foreign, name="board.so")])), "model.so", DEVICE)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"MZ" * 50])
def test_a_broken_file_is_not_sent_either(tmp_path, content):
    (tmp_path / "model.so").write_bytes(content)
    with pytest.raises(ModelError, match=r"^ModelError: model\.so (is|has) ") as caught:
        loadable.check(tmp_path / "model.so", "model.so", DEVICE)
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_tell_finds_out_itself(tmp_path):
    for capabilities in ({}, {"loads": [".so"]}, {"loads": "so", "kinds": 3}):
        loadable.check(b"nonsense", "model.so", capabilities)
    with pytest.raises(ModelError, match=r"cannot load 'model\.onnx'; it loads \.so"):
        loadable.check(b"", "model.onnx", {"loads": [".so"]})


def test_damage_inside_is_for_the_device_to_name():
    damaged = b"".join(map(bytes, packed.pack({"name": 3}, [], 0)))
    loadable.check(carrying("rpcsys.library", damaged), "model.so", DEVICE)
