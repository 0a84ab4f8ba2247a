"""``.pte`` programs: equal to ExecuTorch's own Python. These run where executorch and torch are installed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("executorch.runtime")

import torch
from executorch.runtime import Runtime

from rpcsys.errors import ModelError, RemoteArgumentError
from rpcsys.module import load_module
from tests.module import runtime_models as models


@pytest.mark.parametrize("name", models.CASES)
def test_outputs_are_those_of_executorch(name: str) -> None:
    path = models.compiled(name, ".pte")
    method = Runtime.get().load_program(path).load_method("forward")
    assert method is not None
    wanted = method.execute([torch.from_numpy(array) for array in models.given(name)])
    module = load_module(path)
    assert module.functions == ["main", "forward"]
    found = module(*models.given(name))
    for got, want in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        np.testing.assert_array_equal(got, want.numpy())


def test_what_a_program_does_not_take() -> None:
    module = load_module(models.compiled("perceptron", ".pte"))
    with pytest.raises(RemoteArgumentError, match=r"input 'input0' wants float32 \[2, 4\], and got float32 \[9, 4\]"):
        module(np.zeros((9, 4), "f4"))
    with pytest.raises(ModelError, match="an ExecuTorch program has its devices from its export"):
        load_module(models.compiled("perceptron", ".pte"), device="cuda:0")
