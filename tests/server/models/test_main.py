"""What a host loads."""

from __future__ import annotations

import numpy as np
import pytest

from rpcsys.errors import ModelError, RemoteArgumentError
from rpcsys.server.models import main
from tests.live import deployed


@pytest.mark.parametrize("runtime", [True, False])
def test_an_onnx_file_is_built_for_what_there_is(tmp_path, monkeypatch, runtime):
    path = deployed.onnx_model(tmp_path / "model.onnx", 3.0)
    monkeypatch.setattr(main, "installed", lambda package: runtime)
    module = main.load(str(path), "model", allow_pickle=False)
    x = np.arange(4, dtype="float32")
    assert np.array_equal(module(x), x * 3)
    assert np.array_equal(module.run({"x": x}, ["y"])["y"], x * 3)
    described = module.describe()
    assert (described["kind"], described["functions"]) == ("rpcsys.onnx", ["main"])
    assert [value["name"] for value in described["inputs"]] == ["x"]
    with pytest.raises(RemoteArgumentError, match="takes 1 input"):
        module(x, x)


def test_python_functions_only_where_that_is_allowed(tmp_path):
    path = str(deployed.library(tmp_path / "scale.so", 2.0))
    assert main.load(path, "scale", allow_pickle=True)(np.float32(2)) == 4
    with pytest.raises(ModelError):
        main.load(path, "scale", allow_pickle=False)
