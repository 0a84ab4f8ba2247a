from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from rpcsys.errors import UsageError
from rpcsys.graph import samples

pytest.importorskip("onnx")


def test_names_are_the_networks_of_the_wheel() -> None:
    assert {"resnet50", "squeezenet", "densenet121"} <= set(samples.names())


def test_same_seed_same_bytes() -> None:
    first, again, other = (samples.light_model("squeezenet", seed) for seed in (1, 1, 2))
    assert first.SerializeToString() == again.SerializeToString()
    assert first.SerializeToString() != other.SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "resnet50", "densenet121", "inception_v1", "shufflenet"])
def test_only_data_goes_in_and_no_weight_is_constant(name: str) -> None:
    model = samples.light_model(name)
    assert [[d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.input] == [
        [1, 3, 224, 224]
    ]
    assert not [node for node in model.graph.node if node.op_type == "ConstantOfShape"]
    from onnx import numpy_helper

    arrays = [numpy_helper.to_array(item) for item in model.graph.initializer]
    assert min(float(a.std()) for a in arrays if a.dtype == np.float32) > 0


@pytest.mark.slow
@pytest.mark.parametrize("network", ["squeezenet", "resnet50"])
def test_outputs_are_finite_and_follow_the_input(network: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = samples.light_model(network)
    samples.save(model, tmp_path / "m.onnx")
    (name,) = (value.name for value in model.graph.input)
    images = [np.random.default_rng(seed).standard_normal((1, 3, 224, 224), np.float32) for seed in (1, 2)]
    one, two = (samples.run_here(tmp_path / "m.onnx", {name: image}) for image in images)
    for output, values in one.items():
        assert np.isfinite(values).all()
        assert values.std() > 1e-4
        assert np.abs(values - two[output]).max() > 1e-4


def test_the_error_for_an_unknown_network_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no sample network 'resnet51'; there are .*resnet50"):
        samples.light_model("resnet51")


def test_without_onnx_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"pip install 'rpcsys\[graph\]'"):
        samples.light_model()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match="onnxruntime is needed"):
        samples.run_here("m.onnx", {})


def test_random_inputs_follow_the_specification_and_the_seed() -> None:
    specs = [
        {"name": "x", "dtype": "float16", "shape": ["batch", 3, None]},
        {"name": "n", "dtype": "int64", "shape": []},
        {"name": "b", "dtype": "bool", "shape": [4]},
    ]
    first, again, other = (samples.random_inputs(specs, seed) for seed in (5, 5, 6))
    assert {name: (value.dtype.name, value.shape) for name, value in first.items()} == {
        "x": ("float16", (1, 3, 1)),
        "n": ("int64", ()),
        "b": ("bool", (4,)),
    }
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["x"], other["x"])


def test_a_type_without_random_values_needs_a_file() -> None:
    with pytest.raises(UsageError, match=r"input 'words' is of type strings: give the inputs as an \.npz"):
        samples.random_inputs([{"name": "words", "dtype": "strings", "shape": [2]}])
    with pytest.raises(UsageError, match="'words' is of type strings"):
        samples.check_random([{"name": "words", "dtype": "strings", "shape": (None,)}])
    samples.check_random([{"name": "x", "dtype": "float32", "shape": (None, 2)}])


@pytest.mark.parametrize("kind", ["bfloat16", "seq(tensor(float))", "map(string,tensor(float))"])
def test_what_no_file_holds_is_given_from_python(kind: str) -> None:
    with pytest.raises(UsageError, match=r"files hold plain arrays alone: run the model from Python") as caught:
        samples.random_inputs([{"name": "x", "dtype": kind}])
    assert str(caught.value).startswith(f"input 'x' is of type {kind}, and ")


@pytest.mark.parametrize("spec", [{"name": "x"}, {"name": "x", "dtype": "float32"}, {"name": "x", "shape": [1]}])
def test_an_input_of_unknown_type_needs_a_file(spec: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"does not declare what array input 'x' is: give the inputs as an \.npz"):
        samples.random_inputs([spec])
