"""Regions of a Relax module: which there are, what they take and give, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcsys import graph, module
from rpcsys.errors import UsageError

tvm = pytest.importorskip("tvm")
pytest.importorskip("onnx_ir")

from tvm import relax  # noqa: E402
from tvm.relax.dpl import is_op, wildcard  # noqa: E402

import rpcsys.tvm  # noqa: E402 - it needs TVM
from rpcsys.tvm import _regions  # noqa: E402
from tests.tvm import networks  # noqa: E402

HEADS = graph.Remote(serve="heads", address="127.0.0.1:1")


def regions(mod: Any, *patterns: Any, merge: bool = True) -> list[_regions.Region]:
    return _regions.regions_of(_regions.marked(mod, patterns, merge))


def chain(*operators: Any, shape: tuple = (2, 3)) -> Any:
    """A module of these operators one after another; the last may give a tuple."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        value: Any = x
        with builder.dataflow():
            for operator in operators:
                value = builder.emit(operator(value))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


def test_neighbours_are_one_region_and_others_have_numbers() -> None:
    op = relax.op
    mod = chain(op.tanh, op.nn.relu, op.exp, op.nn.relu, op.tanh)
    assert [each.name for each in regions(mod, "tanh", "nn.relu")] == ["region0", "region1"]
    apart = regions(mod, "tanh", "relax.nn.relu", merge=False)
    assert [each.name for each in apart] == ["region0", "region1"]  # each is called twice
    assert len({each.symbol for each in apart}) == 2
    assert [each.name for each in regions(mod, "exp")] == ["region"]


def test_a_region_has_the_name_of_its_first_pattern_in_the_order_of_calls() -> None:
    op = relax.op
    mod = chain(op.tanh, op.exp, op.nn.relu, op.sqrt, op.tanh, op.nn.relu)
    given = [("bend", is_op("relax.tanh")(wildcard())), ("rpcsys.cut", is_op("relax.nn.relu")(wildcard()))]
    assert [each.name for each in regions(mod, *given)] == ["bend0", "cut", "bend1"]


def test_a_check_and_a_fusion_pattern_are_tvms_own() -> None:
    pattern = is_op("relax.tanh")(wildcard())
    mod = chain(relax.op.tanh, relax.op.exp)
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
    mod = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=True)(chain(relax.op.tanh, relax.op.exp))
    assert [each.name for each in regions(mod)] == ["bend"]


def test_the_device_has_a_program_without_any_kernel_where_all_is_a_region(tmp_path: Path) -> None:
    made = chain(relax.op.tanh)
    remote = graph.Remote(serve="all", address="127.0.0.1:1", fallback="tvm")
    both = rpcsys.tvm.offload(made, ["tanh"], remote=remote)
    assert list(both.parts) == ["all"]
    module.export_library(both.device, tmp_path / "device.so")
    described = module.inspect(tmp_path / "device.so")
    assert described.modules[0].kind == "relax.VMExecutable"
    x = np.ones((2, 3), "f4")
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "device.so")), tvm.cpu())
    np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(x)).numpy(), np.tanh(x), rtol=1e-5)
    with module.load_module(tmp_path / "device.so") as loaded:
        np.testing.assert_allclose(loaded(x), np.tanh(x), rtol=1e-5)
        with pytest.raises(Exception, match=r"takes 1 input\(s\) and 1 array\(s\) to write into, not 1"):
            next(each for each in module.walk(both.device) if each.kind == "rpcsys.graph")._write(x)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"patterns": ["sin"]}, "nothing in the module matches the patterns"),
        ({"patterns": ["nope"]}, "Relax has no operator 'nope'; give names such as"),
        ({"patterns": [3]}, "3 is no pattern: give an operator's name, or"),
        ({"patterns": [("bend", 3)]}, "TVM cannot compile the module: "),
        (
            {"remote": None},
            r"remote is a graph.Remote\(...\), or a mapping of them by region; there are region0, region1",
        ),
        (
            {"remote": {"region0": HEADS}},
            r"the region 'region1' has no graph.Remote\(...\); there are region0, region1",
        ),
        ({"remote": {"region0": HEADS, "region1": HEADS, "x": HEADS}}, "the region 'x' does not exist; there are reg"),
        (
            {"remote": graph.Remote("f", key="edge", tracker="lab")},
            r"several regions \(region0, region1\) need several",
        ),
        ({"remote": dict.fromkeys(["region0", "region1"], graph.Remote("http://a:1/v2/models/m"))}, "has no Relax"),
        ({"remote": graph.Remote(serve="a", address="b:1", fallback="reference")}, "'reference', which runs no Relax"),
        ({"target": "nope"}, "TVM cannot compile the device's part: .*nope"),
        ({"served": "nope"}, "TVM cannot compile region0: .*nope"),
        ({"served": 3}, "3 is no target of TVM"),
        ({"mod": 3}, "3 is no Relax module"),
    ],
)
def test_what_cannot_be_offloaded_is_said_in_one_line(more: dict[str, Any], said: str) -> None:
    given = {
        "mod": chain(relax.op.tanh, relax.op.exp, relax.op.sqrt),
        "patterns": ["tanh", "sqrt"],
        "remote": HEADS,
        **more,
    }
    with pytest.raises(UsageError, match=said) as caught:
        rpcsys.tvm.offload(given.pop("mod"), given.pop("patterns"), **given)
    assert "\n" not in str(caught.value)


def test_a_region_that_gives_a_shape_is_refused() -> None:
    mod = chain(relax.op.shape_of)
    with pytest.raises(UsageError, match=r"region takes or gives .*, and only tensors cross to a server"):
        regions(mod, "shape_of")


def test_a_target_object_of_tvm_and_its_mapping_are_targets() -> None:
    from rpcsys.tvm._offload import _tvm

    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    assert str(tvm.target.Target(_tvm(target).target).kind) == "llvm"
    assert _tvm({"kind": "llvm"}) == graph.Tvm({"kind": "llvm"})
    assert _tvm(graph.Tvm("llvm", toolchain="x")).toolchain == "x"
