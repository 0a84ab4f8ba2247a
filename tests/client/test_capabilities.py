"""A model or function that a device cannot run is refused before it is sent."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest

from rpcsys.client import capabilities
from rpcsys.errors import (
    ModelError,
    NotSupported,
    RemoteError,
    RemoteFunctionError,
    SessionError,
    UsageError,
    ValueNotSupported,
)
from rpcsys.module import elf, export_library, group, library, packed, params, python
from rpcsys.module.module import Module
from tests.device import Device
from tests.live import deployed
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


def test_a_loadable_model_passes(tmp_path):
    path = exported(tmp_path, group([params({"w": np.ones(3)})]))
    capabilities.check_loadable(path, "model.so", DEVICE)
    capabilities.check_loadable(path.read_bytes(), "model.so", DEVICE)
    capabilities.check_loadable(compiled(FUNCTIONS, tmp_path / "f.so"), "f.so", DEVICE)


def test_a_kind_that_the_device_lacks_is_named_with_those_it_has(tmp_path):
    path = exported(tmp_path, group([python({"f": print}), params({"w": np.ones(3)})]))
    for runtime in (False, True):
        with pytest.raises(
            ModelError,
            match=r"model.so holds rpcsys\.python, which this device cannot load \(Python functions: only where .*\); "
            r"it loads _lib, rpcsys\.group, rpcsys\.library, rpcsys\.params",
        ) as caught:
            capabilities.check_loadable(path, "model.so", {**DEVICE, "tvm_runtime": runtime})
        assert "\n" not in str(caught.value)


def carrying(kind: str, data: bytes = b"") -> bytes:
    """A library with a module of this kind, which need not be loadable here."""
    return libraries.library(libraries.tree((kind, (), data)), elf.here())


def test_kinds_that_tvms_runtime_may_have_pass(tmp_path):
    program = carrying("relax.VMExecutable")
    capabilities.check_loadable(program, "model.so", {**DEVICE, "tvm_runtime": True})
    with pytest.raises(ModelError, match=r"holds relax\.VMExecutable, which this device cannot load; it loads _lib"):
        capabilities.check_loadable(program, "model.so", DEVICE)
    with pytest.raises(ModelError, match=r"holds rpcsys\.other"):
        capabilities.check_loadable(carrying("rpcsys.other"), "model.so", {**DEVICE, "tvm_runtime": True})


def test_tvms_runtime_loads_ours_behind_a_root_of_its_own():
    kinds = itertools.permutations(["relax.VMExecutable", "rpcsys.params"])
    trees = (libraries.tree((root, (1,), b"x"), (imported, (), b"x")) for root, imported in kinds)
    program, reverse = (libraries.library(tree, elf.here()) for tree in trees)
    capabilities.check_loadable(program, "model.so", {**DEVICE, "tvm_runtime": True})
    for refused, runtime in ((program, False), (reverse, True)):
        with pytest.raises(ModelError, match=r"holds relax\.VMExecutable, which this device cannot load"):
            capabilities.check_loadable(refused, "model.so", {**DEVICE, "tvm_runtime": runtime})


def test_kinds_in_the_older_layout_are_not_left_to_tvms_runtime():
    there = {**DEVICE, "tvm_runtime": True}
    blobs = [libraries.older((kind, libraries.string(b"x"))) for kind in ("rpcsys.params", "relax.Executable")]
    ours, theirs = (libraries.library(blob, elf.here(), "__tvm_dev_mblob") for blob in blobs)
    capabilities.check_loadable(ours, "model.so", there)
    with pytest.raises(
        ModelError, match=r"holds relax\.Executable, which this device cannot load; it loads [^;]*params$"
    ):
        capabilities.check_loadable(theirs, "model.so", there)


@pytest.mark.usefixtures("bytes_kind")
def test_an_unknown_kind_beside_ours_is_refused(tmp_path):
    path = exported(tmp_path, group([Holder(b"")]))
    with pytest.raises(ModelError, match=r"holds testing\.bytes, which this device cannot load"):
        capabilities.check_loadable(path, "model.so", {**DEVICE, "tvm_runtime": True})
    capabilities.check_loadable(path, "model.so", {**DEVICE, "kinds": [*DEVICE["kinds"], "testing.bytes"]})


def test_a_library_for_another_machine_is_refused(tmp_path):
    path = exported(tmp_path, params({"w": np.ones(3)}), toolchain="aarch64-linux-gnu")
    with pytest.raises(
        ModelError, match=r"model.so is built for aarch64 \(64 bits\), and the device is x86_64 \(64 bits\)"
    ):
        capabilities.check_loadable(path, "model.so", {**DEVICE, "target": ["x86_64", 64]})
    capabilities.check_loadable(path, "model.so", {**DEVICE, "target": ["aarch64", 64]})


def test_inner_libraries_are_checked(tmp_path):
    program = library(carrying("relax.VMExecutable"), name="program.so")
    inner = exported(tmp_path, group([program]))
    capabilities.check_loadable(inner, "model.so", {**DEVICE, "tvm_runtime": True})
    with pytest.raises(ModelError, match=r"holds relax\.VMExecutable"):
        capabilities.check_loadable(inner, "model.so", DEVICE)
    foreign = exported(tmp_path, params({}), toolchain="aarch64-linux-gnu").read_bytes()
    with pytest.raises(ModelError, match=r"board.so is built for aarch64"):
        capabilities.check_loadable(exported(tmp_path, group([library(foreign, name="board.so")])), "model.so", DEVICE)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"MZ" * 50])
def test_a_broken_file_is_refused(tmp_path, content):
    (tmp_path / "model.so").write_bytes(content)
    with pytest.raises(ModelError, match=r"^ModelError: model\.so (is|has) ") as caught:
        capabilities.check_loadable(tmp_path / "model.so", "model.so", DEVICE)
    assert "\n" not in str(caught.value)


def test_unreported_capabilities_are_not_checked(tmp_path):
    for said in ({}, {"loads": [".so"]}, {"loads": "so", "kinds": 3}):
        capabilities.check_loadable(b"nonsense", "model.so", said)
    with pytest.raises(ModelError, match=r"cannot load 'model\.onnx'; it loads \.so"):
        capabilities.check_loadable(b"", "model.onnx", {"loads": [".so"]})


def test_devices_as_they_are_described_or_by_name_alone():
    described = [{"name": "cpu:0", "loaders": []}, {"name": "opencl:0"}]
    names = ["cpu:0", "opencl:0"]
    assert capabilities.devices({"devices": names, "capabilities": {"devices": described}}) == described
    assert capabilities.devices({"devices": names, "capabilities": {}}) == [{"name": name} for name in names]
    assert capabilities.devices({"devices": ["cpu:0"]}) == [{"name": "cpu:0"}]
    for nonsense in ({}, {"devices": 3}, {"capabilities": [], "devices": None}, {"capabilities": {"devices": 7}}):
        assert capabilities.devices(nonsense) == []
    assert capabilities.devices({"capabilities": {"devices": [7, {}]}}) == []


def test_a_broken_inner_library_passes():
    damaged = b"".join(map(bytes, packed.pack({"name": 3}, [], 0)))
    capabilities.check_loadable(carrying("rpcsys.library", damaged), "model.so", DEVICE)


WILLING = {"pickle": True, "cloudpickle": True, "python": capabilities.VERSION}


@pytest.fixture(scope="module")
def session():
    with Device(allow_pickle=True) as device, device.session() as session:
        yield session


def test_a_function_runs_there_with_what_it_refers_to(session):
    import os

    scale = np.arange(3)

    def scaled(x, *, plus=1):
        from rpcsys.server.sandbox import processes

        return x * scale + plus, processes.number()

    values, pid = session.run(scaled, np.full(3, 2.0))
    assert (values == [1, 3, 5]).all()
    assert pid == session.info["pid"] != os.getpid()


def test_arguments_and_results_are_those_of_any_call(session):
    kept = session.array(np.ones(4))
    assert session.run(lambda *args: args, kept, 1, {"a": [b"x"]})[1:] == (1, {"a": [b"x"]})
    adder = session.run(lambda n: lambda m: n + m, 40)
    assert adder(2) == 42


def test_an_error_of_the_function_shows_its_own_lines(session):
    def divide():
        return 1 / 0  # here

    with pytest.raises(RemoteError, match=r"ZeroDivisionError(.|\n)*in divide"):
        session.run(divide)


def test_a_result_without_a_form_does_not_end_the_session(session):
    with pytest.raises(ValueNotSupported, match="has no form on the wire"):
        session.run(object)
    assert session.run(lambda: 1) == 1


def test_a_module_that_the_device_lacks_is_an_error(session):
    def use():
        import a_module_that_nobody_has

        return a_module_that_nobody_has

    with pytest.raises(RemoteError, match="ModuleNotFoundError"):
        session.run(use)


def test_a_deadline_ends_the_function():
    def sleep():
        import time

        time.sleep(300)

    with Device(allow_pickle=True) as device, device.session() as session:
        with pytest.raises(SessionError):
            session.run(sleep, deadline_s=0.2)
        with pytest.raises(SessionError):
            session.ping()


def test_an_object_that_cannot_be_pickled_is_a_usage_error(session):
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be sent: .*lock"):
        session.run(lambda: lock)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pickle": False}, "start it with --allow-pickle"),
        ({"pickle": None}, "start it with --allow-pickle"),
        ({"python": "2.7"}, rf"the device has Python 2\.7 and this is Python {capabilities.VERSION}"),
        ({"cloudpickle": False}, "the device has no cloudpickle; there: python3 -m pip install cloudpickle"),
    ],
)
def test_a_function_that_the_device_cannot_run_is_not_pickled(changed, message):
    with pytest.raises(RemoteFunctionError, match=message):
        capabilities.pickled(threading.Lock(), {**WILLING, **changed})


def test_a_missing_cloudpickle_is_a_usage_error(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)
    with pytest.raises(UsageError, match="needs cloudpickle here, too"):
        capabilities.pickled(len, WILLING)


def test_a_server_without_allow_pickle_refuses_functions():
    with Device() as device, device.session() as session:
        with pytest.raises(RemoteFunctionError, match="start it with --allow-pickle"):
            session.run(len, [1])
        assert session.get_function("testing.echo")(1) == 1


def test_threads_go_behind_the_device_to_a_server_that_knows_them():
    able = {"threads": True, "devices": []}
    assert capabilities.how("", 0, {}) == ()
    assert capabilities.how("", 2, able) == ("", 2)
    assert capabilities.how("opencl", 2, able) == ("opencl:0", 2)
    assert capabilities.how("opencl:1", 0, able) == ("opencl:1",)
    with pytest.raises(NotSupported, match="sets no number of threads; update rpcsys there"):
        capabilities.how("", 2, {"devices": []})
    for wrong in (-1, 1.5, True):
        with pytest.raises(UsageError, match="1 to 1024 threads; 0 means the model's own"):
            capabilities.how("", wrong, able)


def test_a_model_is_loaded_with_its_threads(tmp_path):
    pytest.importorskip("onnxruntime")
    model = deployed.onnx_model(tmp_path / "scale.onnx", 3)
    native = compiled(FUNCTIONS, tmp_path / "native.so")
    with Device() as device, device.session() as session:
        assert session.load_module(model, threads=1)(np.ones(4, "f4")).tolist() == [3] * 4
        assert session.load_module("scale.onnx", device="cpu", threads=2).kind == "rpcsys.onnx"
        with pytest.raises(ModelError, match="has no number of threads to set"):
            session.load_module(native, threads=1)
        with pytest.raises(UsageError):
            session.load_module(model, threads=9999)
