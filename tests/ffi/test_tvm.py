"""libtvm_runtime: modules that TVM's loaders load, and Relax."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rpcsys.errors import NativeError
from rpcsys.ffi import tvm
from tests.live.artefacts import Artefacts, compiled, relax_weights

pytest.importorskip("tvm")


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    base = tmp_path_factory.getbasetemp()
    return compiled(base.parent if base.name.startswith("popen-") else base)


def test_a_library_that_tvm_built(artefacts: Artefacts) -> None:
    module = tvm.load_module(str(artefacts.addone))
    assert module.kind == "library"
    x, y = np.ones(1024, "float32"), np.zeros(1024, "float32")
    module.function("addone")(x, y)
    assert y.tolist() == [2.0] * 1024
    with pytest.raises(NativeError, match="2 arguments") as caught:
        module.function("addone")(x)
    assert caught.value.kind == "TypeError"
    with pytest.raises(NativeError, match="'addtwo'"):
        module.function("addtwo")


def test_a_bare_name_is_a_file_of_the_working_folder(artefacts: Artefacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(artefacts.addone.parent)
    assert tvm.load_module(artefacts.addone.name).function("addone").__name__ == "addone"
    assert tvm.load_library(artefacts.addone.name).kind == "library"


def test_a_relax_program(artefacts: Artefacts) -> None:
    module = tvm.load_module(str(artefacts.relax))
    assert module.kind == tvm.EXECUTABLE
    machine = tvm.VirtualMachine(module)
    assert "main" in machine.functions()
    assert machine.parameters("main") == [("x", "float32", [4, 8])]
    x = np.random.default_rng(1).standard_normal((4, 8)).astype("float32")
    result = machine.function("main")(x)
    seen = np.frombuffer(result.data, "float32").reshape(result.shape)
    np.testing.assert_allclose(seen, np.maximum(x @ relax_weights(), 0), rtol=1e-5)
    with pytest.raises(NativeError, match="ndim"):
        machine.function("main")(x[0])


def test_a_file_that_tvm_cannot_load_is_an_error(tmp_path: Path) -> None:
    for name in ("nowhere.so", "model.xyz", "no_ending"):
        with pytest.raises(NativeError):
            tvm.load_module(str(tmp_path / name))
