"""Stages compiled by TVM."""

from __future__ import annotations

import sys

import pytest

from rpcsys import graph
from rpcsys.errors import UsageError
from tests.graph.running import chain, make, node, values


def test_an_operator_that_tvm_lacks_is_named() -> None:
    pytest.importorskip("tvm")
    model = make([node("Secret", "x", "y", domain="nowhere")], values("x"), values("y"), domains={"nowhere": 1})
    with pytest.raises(UsageError, match=r"TVM cannot compile stage0: .*Secret"):
        graph.build(graph.split(model, [])[0], "tvm")


def test_without_tvm_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(UsageError, match=r"pip install 'rpcsys\[tvm\]'"):
        graph.build(graph.split(chain(), [])[0], "tvm")
