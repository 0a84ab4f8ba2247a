"""Folders of models for other inference servers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from rpcsys import graph
from rpcsys.errors import UsageError
from rpcsys.graph._build.repository import write_model
from tests.client.inference.scripted import ScriptedServer, reply
from tests.graph._build.test_decoding import X, Z, stage_of

URL = "http://10.0.0.1:8000/v2/models/part"


def offload(function: str, **more) -> graph.Offload:
    stages = graph.split(onnx.load_from_string(stage_of().to_bytes()), [])
    return graph.offload(stages, {stages[0].name: graph.Remote(function, **more)})


def test_a_model_has_what_servers_read(tmp_path: Path) -> None:
    write_model(tmp_path, "part", "3", stage_of())
    folder = tmp_path / "part"
    assert sorted(path.name for path in folder.iterdir()) == ["3", "config.pbtxt", "model-settings.json"]
    onnx.checker.check_model(str(folder / "3" / "model.onnx"))
    assert (folder / "config.pbtxt").read_text().splitlines() == [
        'name: "part"',
        'platform: "onnxruntime_onnx"',
        "max_batch_size: 0",
        'input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] }',
        'input { name: "z" data_type: TYPE_FP32 dims: [-1, 4] }',
        'output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] }',
        'output { name: "total" data_type: TYPE_FP32 dims: [1] reshape: { shape: [] } }',
    ]
    settings = json.loads((folder / "model-settings.json").read_text())
    assert (settings["name"], settings["parameters"]["uri"]) == ("part", "./3/model.onnx")
    assert settings["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 4]}


@pytest.mark.parametrize(("url", "version"), [(URL, "1"), (f"{URL}/versions/7", "7"), ("grpc://h:1/part/5", "5")])
def test_a_part_has_the_name_and_the_version_of_its_url(url: str, version: str, tmp_path: Path) -> None:
    offload(url, encode="int8").save_repository(tmp_path)
    model = onnx.load(tmp_path / "part" / version / "model.onnx")
    assert [value.name for value in model.graph.input] == ["x", "x.scale", "z", "z.scale"]
    assert "TYPE_INT8" in (tmp_path / "part" / "config.pbtxt").read_text()


def test_another_part_has_the_name_of_its_module(tmp_path: Path) -> None:
    offload("", serve="scale", address="h:1").save_repository(tmp_path)
    assert (tmp_path / "scale" / "1" / "model.onnx").is_file()


def test_what_no_file_has_is_refused(tmp_path: Path) -> None:
    pair = (lambda x: x, lambda x: x)
    with pytest.raises(UsageError, match="functions decode"):
        offload("", serve="scale", address="h:1", encode={"x": pair}).save_repository(tmp_path)
    with pytest.raises(UsageError, match="no function to decode 'x'"):
        offload(URL, encode={"x": pair})
    for how in ("zlib", "int8+zstd"):
        with pytest.raises(UsageError, match="float16 and int8 alone"):
            offload(URL, encode=how)
    (tmp_path / "part").write_text("a file")
    with pytest.raises(UsageError, match="cannot be written"):
        offload(URL).save_repository(tmp_path)


@pytest.mark.parametrize(("encode", "atol"), [("", 1e-6), ("float16", 0.1), ("int8", 0.5)])
def test_a_device_calls_the_model_of_the_repository(encode: str, atol: float, tmp_path: Path) -> None:
    """What the device sends is what the written model takes."""
    import onnxruntime

    sent = []

    def infer(asked):
        model = onnxruntime.InferenceSession(str(tmp_path / "part" / "1" / "model.onnx"))
        types, at, feeds = {"FP32": "f4", "FP16": "f2", "INT8": "i1", "FP64": "f8"}, 0, {}
        for tensor in asked.value["inputs"]:
            size = tensor["parameters"]["binary_data_size"]
            part = np.frombuffer(asked.binary[at : at + size], types[tensor["datatype"]])
            feeds[tensor["name"]] = part.reshape(tensor["shape"])
            at += size
        sent.append({name: value.dtype.name for name, value in feeds.items()})
        names = [output["name"] for output in asked.value["outputs"]]
        arrays = dict(zip(names, model.run(names, feeds), strict=True))
        kinds = {np.dtype(code): name for name, code in types.items()}
        outputs = [
            {"name": name, "datatype": kinds[value.dtype], "shape": list(value.shape),
             "parameters": {"binary_data_size": value.nbytes}} for name, value in arrays.items()
        ]  # fmt: skip
        return reply({"outputs": outputs}, binary=b"".join(value.tobytes() for value in arrays.values()))

    with ScriptedServer(infer) as server:
        both = offload(server.url.removesuffix("m") + "part", encode=encode)
        both.save_repository(tmp_path)
        with both.device as device:
            found = device.run({"x": X, "z": Z})
            expected = {"y": 2 * X + Z, "total": (2 * X + Z).sum()}
            for name, value in expected.items():
                assert found[name].dtype == np.float32
                np.testing.assert_allclose(found[name], value, atol=atol * (1 if name == "y" else 9))
        assert set(sent[0].values()) == {"": {"float32"}, "float16": {"float16"}, "int8": {"int8", "float64"}}[encode]
