"""Names of targets."""

from __future__ import annotations

from rpcsys import graph
from rpcsys.graph._build.targets import target_of


def test_names_of_targets() -> None:
    assert target_of("tvm:cuda") == graph.Tvm("cuda")
    assert target_of('tvm:{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}') == graph.Tvm(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    )
