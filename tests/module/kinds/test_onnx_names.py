"""Renamed ONNX models: they compute the same, and contain no old name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from rpcsys.graph import samples
from rpcsys.module.kinds import onnx_names
from rpcsys.module.strip_names import Names
from tests.graph import onnx_cases

#: Every name in it begins with "secret"; its inputs and outputs are x, n and y.
MODEL = """
<ir_version: 10, opset_import: ["" : 18, "secret.domain" : 1], producer_name: "secret-tool", doc_string: "secret-doc",
 metadata_props: ["secret-key" : "secret-value"]>
secretgraph (float[3] x, int64 n, bool c) => (float[3] y)
<float[3] secretweight = {1, 2, 3}, float secretzero = {0}>
{
    secretsum = Add (x, secretweight)
    secretchosen = If (c) <
        then_branch = secretthen () => (float[3] secretyes) { secretyes = Mul (secretsum, secretweight) },
        else_branch = secretelse () => (float[3] secretno) { secretno = secret.domain.secretoperator (secretsum) }
    >
    secrettrue = Constant <value = bool secretconstant {1}> ()
    secretlooped = Loop (n, secrettrue, secretchosen) <
        body = secretbody (int64 secreti, bool secretgoon, float[3] secretstate) => (bool secretgo, float[3] secretnext)
        {
            secretgo = Identity (secretgoon)
            secretnext = Add (secretstate, x)
        }
    >
    y = Clip (secretlooped, secretzero)
}
<domain: "secret.domain", opset_import: ["" : 18]>
secretoperator (secretin) => (secretout)
{
    secrethalf = Constant <value = float {0.5}> ()
    secretout = Mul (secretin, secrethalf)
}
"""


def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(MODEL)
    for number, node in enumerate(made.graph.node):
        node.name, node.doc_string = f"secretnode{number}", "secret words"
    made.graph.value_info.append(helper.make_tensor_value_info("secretsum", onnx.TensorProto.FLOAT, [3]))
    return made


def run(proto: bytes, feeds: dict) -> list:
    return onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"]).run(None, feeds)


@pytest.mark.parametrize("condition", [True, False])
def test_no_name_is_left_and_results_are_the_same(condition: bool) -> None:
    before = model().SerializeToString()
    after = onnx_names.renamed(before, Names(["x", "n", "c", "y"]))
    onnx.checker.check_model(onnx.load_from_string(after), full_check=True)
    assert b"secret" in before
    assert b"secret" not in after
    feeds = {"x": np.array([1, -5, 2], "f4"), "n": np.array(3), "c": np.array(condition)}
    np.testing.assert_array_equal(run(after, feeds)[0], run(before, feeds)[0])


def test_the_same_model_becomes_the_same_bytes() -> None:
    before = model().SerializeToString()
    assert onnx_names.renamed(before, Names([])) == onnx_names.renamed(before, Names([]))


def test_a_domain_with_foreign_operators_stays() -> None:
    made = model()
    made.graph.node.append(helper.make_node("Vendors", ["y"], ["z"], domain="secret.domain"))
    after = onnx.load_from_string(onnx_names.renamed(made.SerializeToString(), Names(["x", "n", "c", "y"])))
    assert after.graph.node[-1].domain == "secret.domain"
    assert after.graph.node[-1].op_type == "Vendors"
    assert [function.name for function in after.functions] == ["f0"]


def test_a_real_network() -> None:
    before = samples.light_model("squeezenet")
    kept = [value.name for value in (*before.graph.input, *before.graph.output)]
    after = onnx.load_from_string(onnx_names.renamed(before.SerializeToString(), Names(kept)))
    old = {name for node in before.graph.node for name in (*node.input, *node.output, node.name)} - {*kept, ""}
    new = {name for node in after.graph.node for name in (*node.input, *node.output, node.name)}
    assert len(old) > 50
    assert old.isdisjoint(new)
    assert [node.op_type for node in after.graph.node] == [node.op_type for node in before.graph.node]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cases_of_the_backend_suite_pass_after_renaming() -> None:
    failed, passed = [], 0
    for case in onnx_cases.cases():
        if onnx_cases.passes_directly(case):
            passed += 1
            kept = [value.name for value in (*case.model.graph.input, *case.model.graph.output)]
            after = onnx_names.renamed(case.model.SerializeToString(), Names(kept))
            if not onnx_cases.passes_directly(replace(case, model=onnx.load_from_string(after))):
                failed.append(case.name)
    assert failed == []
    assert passed > 1900
