"""``.tflite`` models: equal to LiteRT's own Python, with signatures and without, with free extents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from ai_edge_litert.interpreter import Interpreter

from rpcsys.errors import ModelError
from rpcsys.module import load_module
from tests.module import runtime_models as models


@pytest.mark.parametrize("name", models.CASES)
def test_outputs_are_those_of_litert(name: str, tmp_path: Path) -> None:
    path = models.written(name, ".tflite", tmp_path)
    module = load_module(path, threads=1)
    feeds = dict(zip([each["name"] for each in module.inputs], models.given(name), strict=True))
    wanted = Interpreter(str(path), num_threads=1).get_signature_runner()(**feeds)
    found = module.run(feeds)
    assert found.keys() == wanted.keys()
    for output, array in found.items():
        np.testing.assert_array_equal(array, wanted[output])


def test_functions_are_signatures(tmp_path: Path) -> None:
    path = models.written("signatures", ".tflite", tmp_path)
    module = load_module(path)
    assert module.functions == ["main", "serving_default", "both"]
    assert [each["name"] for each in module.inputs] == ["x"]
    a, b = models.given("both")
    product, both = module["both"](a, b)  # in the order that LiteRT has them: by name
    np.testing.assert_array_equal(product, a * b)
    np.testing.assert_array_equal(both, a + b)


def test_a_model_without_signatures_takes_any_extent_that_is_free(tmp_path: Path) -> None:
    module = load_module(models.written("bare", ".tflite", tmp_path))
    assert module.functions == ["main"]
    assert module.inputs == [{"name": "x", "dtype": "float32", "shape": [None, 4]}]
    for rows in (1, 5, 2):
        x = np.random.default_rng(rows).standard_normal((rows, 4), "float32")
        np.testing.assert_allclose(module(x), models.perceptron(x), rtol=1e-5, atol=1e-5)


def test_other_devices_are_refused(tmp_path: Path) -> None:
    path = models.written("both", ".tflite", tmp_path)
    with pytest.raises(ModelError, match=r"both\.tflite is for cuda:0, and LiteRT's Python runs models on the CPU"):
        load_module(path, device="cuda:0")


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    path = models.written("convolution", ".tflite", tmp_path)
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(ModelError, match=r"convolution\.tflite cannot be loaded by LiteRT: [^\n]*valid Flatbuffer"):
        load_module(path)
