"""Small random networks for Hypothesis: branches, skips, constants, several outputs, and bodies that capture."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.graph.running import Feeds, make, node, numbers, values

_UNARY = ("Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Identity")
_BINARY = ("Add", "Mul", "Sub", "Max", "Min")


_LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # 240 to 570 MB of weights


def stage_counts(network: str) -> tuple[int, ...]:
    """The numbers of stages in which the sample ``network`` is tried: fewer where each takes long."""
    return (2, 7) if network in _LARGE else (2, 3, 4, 7)


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    """2 to 14 nodes; every tensor is float32 of 2 by 3, except the input ``flag``, which selects branches."""
    inputs = [f"x{i}" for i in range(draw(st.integers(1, 2)))]
    weights = {f"w{i}": np.full((2, 3), 0.5 + i, np.float32) for i in range(draw(st.integers(0, 2)))}
    tensors = [*inputs, *weights]
    nodes: list[onnx.NodeProto] = []
    for number in range(draw(st.integers(2, 14))):
        made = draw(_node(number, tensors))
        nodes.append(made)
        tensors += made.output
    results = [name for item in nodes for name in item.output]
    outputs = draw(st.lists(st.sampled_from(results), min_size=1, max_size=3, unique=True))
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    return make(nodes, [*values(*inputs), flag], values(*outputs), weights=weights)


def feeds_of(network: onnx.ModelProto, flag: bool) -> Feeds:
    """Random values for the inputs of a network made by `networks`."""
    feeds = {item.name: numbers(2, 3, seed=i) for i, item in enumerate(network.graph.input)}
    return {**feeds, "flag": np.asarray(flag)}


@st.composite
def _node(draw: st.DrawFn, number: int, tensors: list[str]) -> Any:
    tensor = st.sampled_from(tensors)
    kind = draw(st.sampled_from(["unary", "unary", "binary", "binary", "constant", "if"]))
    made = f"t{number}"
    if kind == "unary":
        return node(draw(st.sampled_from(_UNARY)), draw(tensor), made, name=f"n{number}")
    if kind == "binary":
        return node(draw(st.sampled_from(_BINARY)), f"{draw(tensor)} {draw(tensor)}", made)
    if kind == "constant":
        value = onnx.numpy_helper.from_array(np.full((2, 3), number, np.float32))
        return helper.make_node("Constant", [], [made], value=value)
    return _if(number, draw(tensor), draw(tensor))


def _if(number: int, first: str, second: str) -> onnx.NodeProto:
    """Two outputs: one branch computes the second from the first's tensor, the other swaps them."""
    bodies = {}
    for side, (one, two) in {"then": (first, second), "else": (second, first)}.items():
        inner = [node("Neg", one, f"{side}{number}a"), node("Add", f"{side}{number}a {two}", f"{side}{number}b")]
        made = values(f"{side}{number}a", f"{side}{number}b")
        bodies[f"{side}_branch"] = helper.make_graph(inner, side, [], made)
    return helper.make_node("If", ["flag"], [f"t{number}", f"t{number}b"], **bodies)
