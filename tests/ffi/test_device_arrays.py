"""Arrays in the memory of a device: there and back, counted; and what there is no room or no device for."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rpcsys.errors import NativeError
from rpcsys.ffi import calls, device_arrays
from rpcsys.module import placement
from rpcsys.wire.tensor import Tensor, as_tensor
from tests import opencl_here
from tests.device_files import ROOT
from tests.opencl_here import DEVICE


@pytest.fixture(autouse=True, scope="module")
def opencl() -> None:
    opencl_here.load()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="float32").reshape(2, 3),
        np.arange(12, dtype="int64")[::2],
        np.array(7, dtype="float16"),
        np.zeros((0, 3), "int8"),
        np.array([True, False]),
    ],
)
def test_an_array_comes_back_as_it_went(array: np.ndarray) -> None:
    there = device_arrays.copied(array, DEVICE)
    assert (there.dtype, there.shape, there.nbytes, there.device) == (
        array.dtype.name,
        array.shape,
        array.nbytes,
        DEVICE,
    )
    back = there.to_host()
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.array_equal(back, array)


def test_an_array_of_a_type_that_numpy_lacks() -> None:
    there = device_arrays.copied(Tensor("bfloat16", (2, 2), bytes(range(8))), DEVICE)
    assert there.nbytes == 8
    back = as_tensor(there.to_host())
    assert back is not None
    assert (back.dtype, bytes(back.data)) == ("bfloat16", bytes(range(8)))


def test_copies_are_counted() -> None:
    figures = placement.queue(DEVICE).figures
    before = (figures.copied_in, figures.bytes_in, figures.copied_out, figures.bytes_out)
    there = device_arrays.copied(np.zeros(8, "float32"), DEVICE)
    placement.on_host([there, there])
    after = (figures.copied_in, figures.bytes_in, figures.copied_out, figures.bytes_out)
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 32, 2, 64]


def test_native_code_takes_it_as_it_is() -> None:
    there = device_arrays.copied(np.zeros(8, "float32"), DEVICE)
    seen = calls.wrap(lambda array: array)(there)
    assert (seen.device, seen.shape) == (DEVICE, (8,))
    assert seen._tensor.data == there._tensor.data
    with pytest.raises(NativeError, match="on opencl:0 cannot be read from Python"):
        _ = seen.data


def test_no_room_is_one_line() -> None:
    with pytest.raises(
        NativeError, match=r"^opencl:0 has no room for an array of float32 \[1099511627776\]: "
    ) as caught:
        device_arrays.empty("float32", (1 << 40,), DEVICE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("opencl:77", "there is no opencl:77 on this machine"),
        ("metal:0", "TVM's runtime here has no Metal; build TVM with USE_METAL$"),
        ("openvino:CPU", "openvino:CPU cannot be used: TVM has no devices of kind openvino"),
    ],
)
def test_a_device_that_is_not_there(device: str, words: str) -> None:
    with pytest.raises(NativeError, match=words):
        device_arrays.copied(np.zeros(1), device)


def test_what_is_no_array() -> None:
    with pytest.raises(NativeError, match="a dict is no array that opencl:0 could hold"):
        device_arrays.copied({}, DEVICE)


def test_without_the_plug_in_the_error_names_it() -> None:
    code = (
        "from rpcsys.ffi import device_arrays\nprint(device_arrays.missing('cpu') or device_arrays.missing('opencl'))"
    )
    code = f"from rpcsys.ffi import library\nlibrary.load_runtime()\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    how = "build TVM with USE_OPENCL or load native/tvm_opencl with --load-library"
    assert done.stdout.strip() == f"TVM's runtime here has no OpenCL; {how}"
