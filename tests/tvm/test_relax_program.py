"""A compiled Relax program as a tree of modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rpcsys import graph, module
from rpcsys.errors import ModelError

tvm = pytest.importorskip("tvm")
pytest.importorskip("onnx_ir")

from tvm import relax  # noqa: E402

import rpcsys.tvm  # noqa: E402 - it needs TVM
from tests.tvm import networks  # noqa: E402


def test_the_device_has_a_program_without_any_kernel_where_all_is_a_region(tmp_path: Path) -> None:
    made = networks.chain(relax.op.tanh)
    remote = graph.Remote(serve="all", address="127.0.0.1:1", fallback="tvm")
    both = rpcsys.tvm.offload(made, ["tanh"], remote=remote)
    assert list(both.parts) == ["all"]
    module.export_library(both.device, tmp_path / "device.so")
    described = module.inspect(tmp_path / "device.so")
    assert described.modules[0].kind == "relax.VMExecutable"
    x = np.ones((2, 3), "f4")
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "device.so")), tvm.cpu())
    np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(x)).numpy(), np.tanh(x), rtol=1e-5)
    with module.load_module(tmp_path / "device.so") as loaded:
        np.testing.assert_allclose(loaded(x), np.tanh(x), rtol=1e-5)
        with pytest.raises(Exception, match=r"takes 1 input\(s\) and 1 array\(s\) to write into, not 1"):
            next(each for each in module.walk(both.device) if each.kind == "rpcsys.graph")._write(x)


def test_python_functions_in_a_program_are_loaded_where_they_are_allowed(tmp_path: Path) -> None:
    pair = (lambda array: array, lambda array: array)
    remote = graph.Remote(serve="all", address="127.0.0.1:1", fallback="tvm", encode={"x": pair})
    both = rpcsys.tvm.offload(networks.chain(relax.op.tanh), ["tanh"], remote=remote)
    path = tmp_path / "device.so"
    module.export_library(both.device, path)
    with pytest.raises(ModelError, match=r"device\.so holds Python functions, .*allow_pickle=True") as caught:
        module.load_module(path)
    assert "\n" not in str(caught.value)
    rpcsys.tvm.register()
    with pytest.raises(RuntimeError, match=r"rpcsys\.tvm\.register\(allow_pickle=True\)"):
        tvm.runtime.load_module(str(path))
    x = np.ones((2, 3), "f4")
    with module.load_module(path, allow_pickle=True) as loaded:
        np.testing.assert_allclose(loaded(x), np.tanh(x), rtol=1e-5)
