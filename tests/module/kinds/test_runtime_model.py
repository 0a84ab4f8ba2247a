"""What all kinds have that keep a model as its runtime has it: calls, names, libraries, broken files, wrong inputs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcsys.errors import ModelError, RemoteArgumentError, RemoteFunctionError
from rpcsys.module import export_library, group, load_module
from rpcsys.module.kinds import runtime_model
from rpcsys.module.kinds.runtime_model import ModelFiles, ModelRuntime, OnePerCall, RuntimeFunction, RuntimeModule
from rpcsys.module.kinds.values import Value
from tests.module import runtime_models as models

PACKAGES = {
    ".tflite": "ai_edge_litert.interpreter", ".xml": "openvino", ".vmfb": "iree.runtime", ".pte": "executorch.runtime",
}  # fmt: skip


@pytest.fixture(params=PACKAGES)
def suffix(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(PACKAGES[request.param])
    return str(request.param)


@pytest.mark.parametrize("name", models.CASES)
def test_a_model_gives_what_its_formula_gives(suffix: str, name: str, tmp_path: Path) -> None:
    """From its file and from a library, by place and by name."""
    path = models.written(name, suffix, tmp_path)
    wanted = models.expected(name)
    with load_module(path) as module:
        export_library(group([module]), tmp_path / "model.so")
        described = module.inputs, module.outputs
        by_name = module.run(dict(zip([each["name"] for each in module.inputs], models.given(name), strict=True)))
    for file in path.parent.glob(f"{path.stem}.*"):
        if tmp_path in file.parents and file.suffix != ".so":
            file.unlink()
    with load_module(tmp_path / "model.so") as again:
        assert (again.imports[0].inputs, again.imports[0].outputs) == described
        found = again(*models.given(name))
        names = [each["name"] for each in described[1]]
        assert list(by_name) == names
        order = [names.index(each) for each in ("sum", "product")] if "sum" in names else range(len(names))
        several = found if isinstance(found, tuple) else (found,)
        for place, want in zip(order, wanted, strict=True):
            np.testing.assert_allclose(several[place], want, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(by_name[names[place]], several[place])


def test_wrong_inputs_are_one_line(suffix: str, tmp_path: Path) -> None:
    module = load_module(models.written("both", suffix, tmp_path))
    a, b = models.given("both")
    with pytest.raises(RemoteArgumentError, match=r"the model takes 2 input\(s\), not 1: "):
        module(a)
    with pytest.raises(RemoteArgumentError, match=r"wants float32 \[.*4\], and got float64"):
        module(a, b.astype("f8"))
    with pytest.raises(RemoteArgumentError, match=r"and got float32 \[3, 5\]"):
        module(np.zeros((3, 5), "f4"), b)
    with pytest.raises(RemoteArgumentError, match=r"main takes .*, and got nonsense"):
        module.run({"nonsense": a})


def test_a_device_that_there_is_not(suffix: str, tmp_path: Path) -> None:
    path = models.written("both", suffix, tmp_path)
    with pytest.raises(ModelError, match=rf"both\{suffix} (is for|cannot be loaded by) [^\n]*\Z"):
        load_module(path, device="metal:0")


def test_a_library_with_a_broken_model(suffix: str, tmp_path: Path) -> None:
    with load_module(models.written("convolution", suffix, tmp_path)) as module:
        assert isinstance(module, RuntimeModule)
        module.files = ModelFiles(inside=[b"nonsense" * 20])
        export_library(module, tmp_path / "model.so")
    with pytest.raises(ModelError, match=r"model\.so cannot be loaded by [^\n]*\Z"):
        load_module(tmp_path / "model.so")


def test_threads_of_a_call(suffix: str, tmp_path: Path) -> None:
    path = models.written("perceptron", suffix, tmp_path)
    if suffix == ".pte":
        with pytest.raises(ModelError, match="sets no number of threads"):
            load_module(path, threads=2)
        return
    with load_module(path, threads=2) as module:
        export_library(module, tmp_path / "model.so")
        np.testing.assert_allclose(module(*models.given("perceptron")), models.expected("perceptron")[0], rtol=1e-5)
    again = load_module(tmp_path / "model.so", threads=1)
    assert isinstance(again, RuntimeModule)
    assert again.threads == 1


def test_calls_of_several_threads(suffix: str, tmp_path: Path) -> None:
    module = load_module(models.written("perceptron", suffix, tmp_path))
    wrong: list[int] = []

    def run(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((2, 4), "float32")
        for _ in range(50):
            wrong.extend([seed] * (not np.allclose(module(x), models.perceptron(x), rtol=1e-4, atol=1e-4)))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_a_module_that_was_closed(suffix: str, tmp_path: Path) -> None:
    with load_module(models.written("both", suffix, tmp_path)) as module:
        pass
    with pytest.raises(RemoteFunctionError, match="the module was closed"):
        module(*models.given("both"))


# ------------------------------------------------------------------ a runtime that the test makes


def _loaded(run: Callable[[list[Any]], list[Any]]) -> RuntimeModule:
    made = RuntimeFunction([Value("x", "float32")], [Value("y", "float32")], run)
    return runtime_model.load(ModelRuntime("test", "Testing", lambda *_: {"f": made}), ["m.test"], "m.test", "", 0)


def test_an_error_of_a_runtime_is_one_line() -> None:
    def fail(args: list[Any]) -> list[Any]:
        raise ValueError("what\nhappened " + "very " * 200)

    with pytest.raises(RemoteFunctionError) as caught:
        _loaded(fail)(np.float32(1))
    assert re.match(r"RemoteFunctionError: Testing failed: what happened very .{,400}\Z", str(caught.value))


def test_the_first_function_is_main() -> None:
    module = _loaded(lambda args: [args[0] + 1])
    assert module.functions == ["main", "f"]
    assert module["f"](np.float32(1)) == module(np.float32(1)) == 2


def test_a_model_without_functions_is_refused() -> None:
    with pytest.raises(ModelError, match=r"m\.test has no function that Testing can call"):
        runtime_model.load(ModelRuntime("test", "Testing", lambda *_: {}), ["m.test"], "m.test", "", 0)


def test_a_pool_gives_each_thread_its_own_and_drops_what_failed() -> None:
    made: list[int] = []
    pool: OnePerCall[int] = OnePerCall(lambda: made.append(len(made)) or made[-1])
    with pool.one() as first, pool.one() as second:
        assert (first, second) == (0, 1)
    with pytest.raises(KeyError), pool.one() as failed:
        raise KeyError
    with pool.one() as again, pool.one() as new:
        assert failed not in (again, new)
        assert new == 2
