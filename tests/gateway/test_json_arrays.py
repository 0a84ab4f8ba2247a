"""Arrays in JSON, with orjson and without."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.gateway import json_arrays
from rpcsys.gateway.json_arrays import dumps, loads, numbers, to_bytes, to_json_data, top_classes
from rpcsys.wire.inference import InferenceError, from_values, pack_bytes


@pytest.fixture(params=["orjson", "json"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "json":
        monkeypatch.setattr(json_arrays, "_orjson", None)
    elif json_arrays._orjson is None:
        pytest.skip("orjson is not installed")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("FP32", [0.5, -1, 3e38]),
        ("FP64", [[1e300, 2], [3, 4]]),
        ("FP16", [1.5, 65504]),
        ("INT8", [-128, 127]),
        ("UINT64", [0, 2**64 - 1, 2**53 + 1]),
        ("INT64", [-(2**63), 2**63 - 1, 2**53 + 1]),
        ("INT32", [1.0, 2]),
        ("BOOL", [True, False]),
        ("BOOL", [1, 0]),
        ("BYTES", ["a", "äöü"]),
        ("FP32", []),
    ],
)
def test_values_are_kept(datatype: str, values: list[Any]) -> None:
    given = loads(json.dumps(values).encode())
    data = to_bytes(datatype, given, "x")
    assert bytes(data) == from_values(datatype, values, "x")
    back = json.loads(dumps({"data": to_json_data(datatype, data, "x")}))["data"]
    flat = [item for each in values for item in (each if type(each) is list else [each])]
    if datatype == "FP32":
        flat = np.array(flat, "f4").tolist()
        back = np.array(back, "f4").tolist()
    assert back == flat


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("UINT64", [2**64]),
        ("UINT64", [-1]),
        ("INT8", [128]),
        ("INT32", [0.5]),
        ("FP32", [1e39]),
        ("FP16", [70000]),
        ("FP32", ["1"]),
        ("FP32", [None]),
        ("FP32", [[1], 2]),
        ("BOOL", [2]),
        ("BYTES", [1]),
    ],
)
def test_what_is_none_of_the_datatype_is_refused(datatype: str, values: list[Any]) -> None:
    with pytest.raises(InferenceError, match="the data of x") as caught:
        to_bytes(datatype, loads(json.dumps(values).encode()), "x")
    assert caught.value.status == 400


@given(st.sampled_from(["INT16", "UINT8", "FP64", "BOOL"]), st.lists(st.integers(-300, 70000) | st.floats(-9, 9)))
def test_numpy_agrees_with_the_conversion_of_single_values(datatype: str, values: list[Any]) -> None:
    def made(convert: Any) -> Any:
        try:
            return bytes(convert(datatype, values, "x"))
        except InferenceError:
            return None

    assert made(to_bytes) == made(from_values)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"\xff", b"[" * 100_000, b"1" * 5000 + b"x"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(InferenceError, match="JSON") as caught:
        loads(memoryview(text))
    assert caught.value.status == 400


@pytest.mark.usefixtures("library")
def test_json_has_no_nan() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(InferenceError, match="binary"):
            to_json_data("FP32", struct.pack("<f", value), "output 'y'")


@pytest.mark.usefixtures("library")
def test_bfloat16_is_a_number_in_answers() -> None:
    data = b"\x80\x3f\x20\xc0"
    assert numbers("BF16", data).tolist() == [1.0, -2.5]
    assert json.loads(dumps(to_json_data("BF16", data, "y"))) == [1.0, -2.5]


def test_classes() -> None:
    data = np.array([[0.5, 4, 2], [9, 1, 9]], "f4")
    assert top_classes("FP32", (2, 3), data.tobytes(), 2, "y") == (
        (2, 2),
        [b"4.000000:1", b"2.000000:2", b"9.000000:0", b"9.000000:2"],
    )
    assert top_classes("FP32", (3,), data[0].tobytes(), 9, "y")[0] == (3,)
    assert top_classes("INT64", (0, 3), b"", 2, "y") == ((0, 0), [])
    with pytest.raises(InferenceError, match="text"):
        top_classes("BYTES", (1,), pack_bytes([b"a"]), 1, "output 'y'")
