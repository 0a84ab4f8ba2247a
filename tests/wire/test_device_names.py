"""Names of a board's devices: their forms, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import UsageError
from rpcsys.wire import device_names
from rpcsys.wire.device_names import KINDS, OPENVINO, DeviceName, parse

NUMBERED = [kind for kind in KINDS if kind != OPENVINO]


@pytest.mark.parametrize("text", ["cpu:0", "opencl:12", "openvino:CPU", "openvino:GPU.0", "openvino:NPU.3720"])
def test_a_name_is_written_as_it_is_read(text):
    assert str(parse(text)) == text


@pytest.mark.parametrize("kind", NUMBERED)
def test_a_kind_alone_is_its_first_device(kind):
    assert parse(kind) == DeviceName(kind) == DeviceName(kind, "0")


@given(st.sampled_from(NUMBERED), st.integers(0, 9999))
def test_every_number_has_one_form(kind, number):
    name = parse(f"{kind}:{number}")
    assert name == (kind, str(number))
    assert parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":",
            ":0",
            "gpu",
            "gpu:0",
            "CPU:0",
            "cpu:",
            "cpu:00",
            "cpu:01",
            "cpu:-1",
            "cpu:1.0",
            "cpu:10000",
            "cpu: 0",
        ),
        *("cpu:0:1", "cpu:\u0661", "cpu:0\n", "openvino", "openvino:", "openvino:0", "openvino:gpu", "openvino:GPU."),
        *("openvino:GPU:0", "openvino:" + "A" * 17, None, 0, ["cpu:0"], "x" * 100_000),
    ],
)
def test_what_is_no_name_is_refused_in_one_line_with_the_forms(text):
    with pytest.raises(UsageError, match=r"opencl:0 .*openvino:CPU") as refused:
        parse(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@given(
    st.text(max_size=80)
    | st.sampled_from(list(KINDS)).flatmap(lambda kind: st.text(max_size=9).map(f"{kind}:{{}}".format))
)
def test_any_text_is_a_name_or_refused(text):
    try:
        name = parse(text)
    except UsageError:
        return
    assert parse(str(name)) == name
    assert len(str(name)) <= 64


def test_dlpacks_numbers():
    assert [device_names.parse(kind).dlpack for kind in ("cpu", "cuda", "opencl", "vulkan", "metal", "rocm")] == [
        1, 2, 4, 7, 8, 10,
    ]  # fmt: skip
    assert parse("webgpu").dlpack == 15
    assert parse("hexagon").dlpack == 16
    assert parse("npu:0").dlpack is None
    assert parse("openvino:CPU").dlpack is None
