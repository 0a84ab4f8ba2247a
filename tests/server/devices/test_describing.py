"""Descriptions from the answers of drivers, whatever these say."""

import json

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.server.devices.describing import describe
from rpcsys.wire.device_names import KINDS, MAX_DEVICES, MAX_NAME, parse

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
NAMES = ("title", "memory", "driver", "runtime", "number", "type")
FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, ANY))


def test_a_devices_fields():
    gpu = {"title": " a\nGPU \u00e9", "memory": 5, "driver": "1.2", "runtime": "OpenCL 3.0", "type": "gpu"}
    answers = {"cpu": [{}], "opencl": [gpu, {"type": "toaster"}], "openvino": [{"number": "GPU.0"}]}
    devices = describe(answers, lambda kind: ["tvm"] if kind == "opencl" else [])
    assert devices.names == ("cpu:0", "opencl:0", "opencl:1", "openvino:GPU.0")
    rest = {"title": "", "memory": 0, "driver": "", "runtime": ""}
    assert json.loads(devices.described) == [
        {"name": "cpu:0", "kind": "cpu", **rest, "loaders": []},
        {"name": "opencl:0", "kind": "opencl", **gpu, "title": "a GPU ?", "loaders": ["tvm"]},
        {"name": "opencl:1", "kind": "opencl", **rest, "loaders": ["tvm"]},
        {"name": "openvino:GPU.0", "kind": "openvino", **rest, "loaders": []},
    ]


@given(st.dictionaries(st.sampled_from(list(KINDS)), ANY | st.lists(FIELDS | ANY, max_size=80)))
def test_any_answers_give_few_short_descriptions(answers):
    devices = describe(answers, lambda _: ["tvm"])
    assert len(devices.names) <= MAX_DEVICES
    assert len(set(devices.names)) == len(devices.names)
    assert all(str(parse(name)) == name and len(name) <= MAX_NAME for name in devices.names)
    assert len(devices.described) <= MAX_DEVICES * 600
    described = json.loads(devices.described)
    assert [each["name"] for each in described] == list(devices.names)
    assert all(" " <= char <= "~" for each in described for char in each["title"] + each["driver"] + each["runtime"])


def test_a_board_announces_so_many_devices_at_most():
    devices = describe({"cpu": [{}], "cuda": [{}] * 100}, lambda _: [])
    assert devices.names[-1] == f"cuda:{MAX_DEVICES - 2}"
