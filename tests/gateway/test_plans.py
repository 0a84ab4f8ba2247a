"""Requests as calls, and outcomes as answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rpcsys.gateway import plans
from rpcsys.gateway.calls import DeclaredTensor, ModelView, Outcome, ResultForm, failed
from rpcsys.gateway.plans import InferencePlan, PlanMemory
from rpcsys.gateway.shared_memory import SharedMemory
from rpcsys.wire import values
from rpcsys.wire.frames import HEADER_BYTES
from rpcsys.wire.head import parse
from rpcsys.wire.inference import InferenceError, pack_bytes
from rpcsys.wire.inference_messages import response_from_message
from rpcsys.wire.inference_requests import request_from_json
from rpcsys.wire.memory import Pool

VIEW = ModelView(
    "m",
    "3",
    "0003-abc",
    "rpcsys.onnx",
    (DeclaredTensor("a", "float32", ("n", 2)), DeclaredTensor("b", "int8", ("n", 3))),
    (DeclaredTensor("y", "float32", ("n", 2)), DeclaredTensor("z", "int8", ("n", 3))),
)
TEXT = VIEW._replace(inputs=(DeclaredTensor("t", "strings", (None,)),), outputs=(DeclaredTensor("u", "strings", ()),))
OFF = SharedMemory(False)
FLOATS, BYTES = np.array([[1, 2]], "f4").tobytes(), b"\1\2\3"
FORM = ResultForm((("float32", (1, 2)), ("int8", (1, 3))))


def binary(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


A, B = binary("a", "FP32", [1, 2], 8), binary("b", "INT8", [1, 3], 3)


def plan_of(*inputs: dict[str, Any], view: ModelView = VIEW, **more: Any) -> InferencePlan:
    size = sum(each.get("parameters", {}).get("binary_data_size", 0) for each in inputs)
    return InferencePlan(view, request_from_json({"inputs": list(inputs), **more}, view.name, "", size))


def arguments(plan: InferencePlan, *raw: bytes) -> tuple[list[Any], Any]:
    """The arguments of the CALL, and its form."""
    form, buffers = plan.call(raw, OFF, Pool())
    template = form.template
    assert template.body_bytes == sum(map(len, buffers))
    fields = parse(template.first[HEADER_BYTES:]).head
    assert fields["f"] == [plan.view.target, "main"]
    return values.build(fields["a"], buffers), form


def test_binary_parts_are_the_body_in_the_models_order() -> None:
    plan = plan_of(B, A)
    assert plan.cuts == [(0, 3), (3, 11)]
    (a, b), form = arguments(plan, BYTES, FLOATS)
    assert (a.dtype, a.shape, a.data) == ("float32", (1, 2), FLOATS)
    assert (b.dtype, b.shape, b.data) == ("int8", (1, 3), BYTES)
    assert (form.rows, form.others) == (1, (("float32", (2,)), ("int8", (3,))))
    raw = [memoryview(BYTES), memoryview(FLOATS)]
    assert plan.call(raw, OFF, Pool())[1] == [raw[1], raw[0]]  # themselves: nothing is copied


def test_json_is_converted_once_and_goes_alone() -> None:
    given = {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [[1, 2]]}
    plan = plan_of(given, B)
    (a, b), form = arguments(plan, BYTES)
    assert (a.data, b.data, form.others) == (FLOATS, BYTES, None)
    assert plan.call([BYTES], OFF, Pool())[0] is form


def test_strings_are_rewritten() -> None:
    packed = pack_bytes([b"one", b"", "ü".encode()])
    for given, raw in (
        (binary("t", "BYTES", [3], len(packed)), [packed]),
        ({"name": "t", "datatype": "BYTES", "shape": [3], "data": ["one", "", "ü"]}, []),
    ):
        (t,), form = arguments(plan_of(given, view=TEXT), *raw)
        assert (t.dtype, t.data, form.others) == ("strings", ["one", "", "ü"], None)
    plan = plan_of(binary("t", "BYTES", [3], len(packed)), view=TEXT)
    with pytest.raises(InferenceError, match="input 't'"):
        plan.call([packed[:-1]], OFF, Pool())


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((A,), "'b' is missing"),
        ((A, B, binary("c", "INT8", [1], 1)), "'c'"),
        ((A, binary("b", "UINT8", [1, 3], 3)), "expects 'INT8'"),
        ((A, binary("b", "INT8", [1, 4], 4)), r"Expected \[-1,3\], got \[1,4\]"),
        ((A, {"name": "b", "datatype": "INT8", "shape": [1, 3], "data": [1]}), "has 1 elements.* 3"),
    ],
)
def test_what_the_model_does_not_take_is_refused(inputs: tuple[dict[str, Any], ...], words: str) -> None:
    with pytest.raises(InferenceError, match=words) as caught:
        plan_of(*inputs)
    assert caught.value.status == 400


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(InferenceError, match="it has y, z"):
        plan_of(A, B, outputs=[{"name": "w"}])


def test_answers_in_json() -> None:
    outcome = Outcome(FORM, [memoryview(FLOATS), memoryview(BYTES)])
    content, behind = plan_of(A, B, id="7").to_json(outcome, OFF)
    told = json.loads(content)
    assert (told["model_name"], told["model_version"], told["id"], behind) == ("m", "3", "7", [])
    assert told["outputs"][1] == {"name": "z", "datatype": "INT8", "shape": [1, 3], "data": [1, 2, 3]}
    plan = plan_of(A, B, outputs=[{"name": "z", "parameters": {"binary_data": True}}, {"name": "y"}])
    content, behind = plan.to_json(outcome, OFF)
    assert json.loads(content)["outputs"][0]["parameters"] == {"binary_data_size": 3}
    assert (json.loads(content)["outputs"][1]["data"], behind) == ([1, 2], [BYTES])


def test_equal_answers_have_one_head() -> None:
    plan = plan_of(A, B, parameters={"binary_data_output": True})
    buffers = [memoryview(FLOATS), memoryview(BYTES)]
    first = plan.to_json(Outcome(FORM, buffers), OFF)
    again = plan.to_json(Outcome(FORM, buffers), OFF)
    assert again.content is first.content
    assert again.binary == first.binary == buffers
    other = ResultForm((("float32", (2, 2)), ("int8", (2, 3))))
    assert json.loads(plan.to_json(Outcome(other, [2 * FLOATS, 2 * BYTES]), OFF).content)["outputs"][0]["shape"] == [
        2,
        2,
    ]


def test_answers_in_messages() -> None:
    plan = plan_of(A, B)
    for _ in range(2):
        pieces = plan.to_message(Outcome(FORM, [memoryview(FLOATS), memoryview(BYTES)]), OFF)
        outputs = response_from_message(b"".join(pieces))
        assert [(each.name, each.datatype, each.shape, bytes(each.data)) for each in outputs] == [
            ("y", "FP32", (1, 2), FLOATS),
            ("z", "INT8", (1, 3), BYTES),
        ]


def test_classes_and_strings_in_answers() -> None:
    plan = plan_of(A, B, outputs=[{"name": "y", "parameters": {"classification": 1}}])
    content, _ = plan.to_json(Outcome(FORM, [FLOATS, BYTES]), OFF)
    assert json.loads(content)["outputs"] == [
        {"name": "y", "datatype": "BYTES", "shape": [1, 1], "data": ["2.000000:1"]}
    ]
    texts = values.tensor_head
    buffers: list[Any] = []
    texts(plans_tensor(["a", "bc"]), buffers)
    text = plan_of({"name": "t", "datatype": "BYTES", "shape": [1], "data": ["x"]}, view=TEXT)
    content, _ = text.to_json(Outcome(ResultForm((("strings", (2,)),)), buffers), OFF)
    assert json.loads(content)["outputs"][0]["data"] == ["a", "bc"]


def plans_tensor(items: list[str]) -> Any:
    from rpcsys.wire.tensor import Tensor

    return Tensor("strings", [len(items)], items)


def test_errors_and_answers_that_are_none() -> None:
    plan = plan_of(A, B)
    with pytest.raises(InferenceError, match="busy"):
        plan.to_json(failed(InferenceError("busy", 503)), OFF)
    for form in (ResultForm((("float32", (1, 2)),)), ResultForm((("complex64", (1,)), ("int8", (1,))))):
        with pytest.raises(InferenceError) as caught:
            plan.to_message(Outcome(form, [FLOATS] * len(form.outputs)), OFF)
        assert caught.value.status == 500


def test_plans_are_remembered_for_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PlanMemory()
    made = []

    def get(view: ModelView, key: str, size: int = 10, **more: Any) -> InferencePlan:
        def make() -> Any:
            made.append(key)
            return request_from_json({"inputs": [A, B], **more}, "m", "", 11)

        return memory.get(view, key, size, make)

    assert get(VIEW, "1") is get(VIEW, "1")
    other = VIEW._replace(version="4")
    assert get(other, "1").view is other
    assert made == ["1", "1"]
    for more in ({"size": plans.REMEMBERED_BYTES + 1}, {"id": "7"}):
        assert get(other, "2", **more) is not get(other, "2", **more)
    monkeypatch.setattr(plans, "REMEMBERED", 2)
    first = get(other, "1")
    for key in "345":
        get(other, key)
    assert get(other, "1") is not first
