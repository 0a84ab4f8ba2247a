"""Regions of a Relax module: which there are, what they take and give, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from rpcsys.errors import UsageError

tvm = pytest.importorskip("tvm")
pytest.importorskip("onnx_ir")

from tvm import relax  # noqa: E402
from tvm.relax.dpl import is_op, wildcard  # noqa: E402

from rpcsys.tvm import relax_regions  # noqa: E402
from tests.tvm import networks  # noqa: E402


def regions(mod: Any, *patterns: Any, merge: bool = True) -> list[relax_regions.RelaxRegion]:
    return relax_regions.regions_of(relax_regions.marked(mod, patterns, merge))


def test_neighbours_are_one_region_and_others_have_numbers() -> None:
    op = relax.op
    mod = networks.chain(op.tanh, op.nn.relu, op.exp, op.nn.relu, op.tanh)
    assert [each.name for each in regions(mod, "tanh", "nn.relu")] == ["region0", "region1"]
    apart = regions(mod, "tanh", "relax.nn.relu", merge=False)
    assert [each.name for each in apart] == ["region0", "region1"]  # each is called twice
    assert len({each.symbol for each in apart}) == 2
    assert [each.name for each in regions(mod, "exp")] == ["region"]


def test_a_region_has_the_name_of_its_first_pattern_in_the_order_of_calls() -> None:
    op = relax.op
    mod = networks.chain(op.tanh, op.exp, op.nn.relu, op.sqrt, op.tanh, op.nn.relu)
    given = [("bend", is_op("relax.tanh")(wildcard())), ("rpcsys.cut", is_op("relax.nn.relu")(wildcard()))]
    assert [each.name for each in regions(mod, *given)] == ["bend0", "cut", "bend1"]


def test_a_check_and_a_fusion_pattern_are_tvms_own() -> None:
    pattern = is_op("relax.tanh")(wildcard())
    mod = networks.chain(relax.op.tanh, relax.op.exp)
    assert not regions(mod, ("bend", pattern, {}, lambda context: False))
    fusion = relax.transform.FusionPattern("rpcsys.bend", pattern)
    assert [each.name for each in regions(mod, fusion)] == ["bend"]


def test_the_signature_has_names_types_and_free_extents() -> None:
    first, _ = regions(networks.mlp(), ("hidden", networks.hidden()))
    (given,), (made,) = first.signature
    assert (given["dtype"], given["shape"]) == ("float32", ["n", 64])
    assert made == {"name": "output", "dtype": "float32", "shape": ["n", 64]}


def test_a_program_of_a_region_has_its_operators_and_constants() -> None:
    first, _ = regions(networks.resnet(), ("block", networks.block()))
    text = first.program.script(show_meta=True)
    assert text.count("R.nn.conv2d") == 2
    assert "Codegen" not in text


def test_functions_that_are_marked_already_are_regions() -> None:
    patterns = [("rpcsys.bend", is_op("relax.tanh")(wildcard()))]
    mod = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=True)(networks.chain(relax.op.tanh, relax.op.exp))
    assert [each.name for each in regions(mod)] == ["bend"]


def test_a_region_that_gives_a_shape_is_refused() -> None:
    mod = networks.chain(relax.op.shape_of)
    with pytest.raises(UsageError, match=r"region takes or gives .*, and only tensors cross to a server"):
        regions(mod, "shape_of")
