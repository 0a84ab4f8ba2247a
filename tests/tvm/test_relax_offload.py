"""Both sides of a Relax module, without a server; what is refused. With servers: tests/live."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rpcsys import graph
from rpcsys.errors import UsageError

tvm = pytest.importorskip("tvm")
pytest.importorskip("onnx_ir")

from tvm import relax  # noqa: E402

import rpcsys.tvm  # noqa: E402 - it needs TVM
from tests.tvm import networks  # noqa: E402

HEADS = graph.Remote(serve="heads", address="127.0.0.1:1")


def test_regions_of_several_functions_are_not_merged() -> None:
    mod = networks.chain(relax.op.tanh, relax.op.exp)
    other = networks.chain(relax.op.sqrt, relax.op.tanh)["main"].with_attr("global_symbol", "other")
    mod.update_func(relax.GlobalVar("other"), other)
    remote = graph.Remote(serve="r", address="127.0.0.1:1", fallback="tvm")
    with pytest.raises(UsageError, match=r"main is the only function, and there are main, other; give merge=False"):
        rpcsys.tvm.offload(mod, ["tanh"], remote=remote)
    both = rpcsys.tvm.offload(mod, ["tanh", "sqrt"], remote=remote, merge=False)
    x = np.ones((2, 3), "f4")
    np.testing.assert_allclose(both.device["main"](x), np.exp(np.tanh(x)), rtol=1e-5)
    np.testing.assert_allclose(both.device["other"](x), np.tanh(np.sqrt(x)), rtol=1e-5)


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
        (
            {"remote": dict.fromkeys(["region0", "region1"], HEADS)},
            "2 regions are deployed as 'heads'; give each a name",
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
        "mod": networks.chain(relax.op.tanh, relax.op.exp, relax.op.sqrt),
        "patterns": ["tanh", "sqrt"],
        "remote": HEADS,
        **more,
    }
    with pytest.raises(UsageError, match=said) as caught:
        rpcsys.tvm.offload(given.pop("mod"), given.pop("patterns"), **given)
    assert "\n" not in str(caught.value)


def test_a_target_object_of_tvm_and_its_mapping_are_targets() -> None:
    from rpcsys.tvm.relax_offload import _tvm

    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    assert str(tvm.target.Target(_tvm(target).target).kind) == "llvm"
    assert _tvm({"kind": "llvm"}) == graph.Tvm({"kind": "llvm"})
    assert _tvm(graph.Tvm("llvm", toolchain="x")).toolchain == "x"
