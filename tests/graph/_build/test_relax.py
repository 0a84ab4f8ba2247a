"""What TVM says of a program, in one line; a library from a program."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rpcsys.errors import UsageError
from rpcsys.graph import Tvm
from rpcsys.graph._build import relax


def test_tvms_errors_are_one_line_that_names_what_is_compiled() -> None:
    pytest.importorskip("tvm")
    with pytest.raises(UsageError, match=r"TVM cannot compile the head: first second$"), relax.explained("the head"):
        raise ValueError("first\nsecond") from None
    with pytest.raises(UsageError, match=r"of ours$"), relax.explained("the head"):
        raise UsageError("of ours")


def test_a_missing_tvm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(UsageError, match=r"TVM compiles the head, and cannot be imported .*rpcsys\[tvm\]"):
        relax.compiled(lambda: None, Tvm(), "the head")


def test_an_unknown_toolchain_is_named_before_anything_is_compiled() -> None:
    def program() -> Any:
        raise AssertionError

    with pytest.raises(UsageError, match="nowhere"):
        relax.compiled(program, Tvm("llvm", toolchain="nowhere"), "the head")
