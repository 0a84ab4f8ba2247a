"""What a graph's JSON must be."""

from __future__ import annotations

import pytest

from rpcsys.module import packed
from rpcsys.module.kinds import graph
from rpcsys.module.kinds.graph_json import checked
from rpcsys.module.layout import FormatError
from rpcsys.module.registry import Context

GOOD = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["n"]}],
    "outputs": [{"name": "y"}],
    "weights": [],
    "imports": ["rpcsys.group"],
    "stages": [
        {"name": "s", "module": 0, "function": "f", "inputs": ["x"], "outputs": ["y"],
         "makes": [{"dtype": "float32", "shape": ["n", 2]}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": None}, {"inputs": [{}]}, {"outputs": {}}, {"weights": [1]}, {"weights": ["x"]}, {"imports": "ab"},
        {"stages": {}}, {"stages": [7]}, {"stages": [{"name": "s"}]},
        *({"stages": [{**GOOD["stages"][0], key: value}]} for key, value in [
            ("module", 1), ("module", -1), ("module", "0"), ("function", 3), ("inputs", "x"), ("outputs", [1]),
            ("device", 3), ("device", "gpu"), ("device", "opencl:-1"),
            ("makes", []), ("makes", [{}]), ("makes", [{"dtype": "what", "shape": []}]),
            ("makes", [{"dtype": "float32", "shape": ["m"]}]),
            ("makes", [{"dtype": "float32", "shape": [-1]}]), ("makes", [{"dtype": "float32", "shape": [1.5]}]),
            ("makes", [{"dtype": "float32", "shape": [[]]}]),
        ]),
    ],
)  # fmt: skip
def test_invalid_descriptions_are_refused(change):
    assert checked(GOOD) is GOOD
    data = b"".join(packed.pack({**GOOD, **change}, [], 0))
    with pytest.raises(FormatError, match="is broken") as caught:
        graph.load_from_bytes(memoryview(data), Context("model.so", lambda: None))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["cpu:0", "opencl", "openvino:GPU.0"])
def test_a_stage_may_have_a_device(device):
    assert checked({**GOOD, "stages": [{**GOOD["stages"][0], "device": device}]})
