"""What a leased module can be, and what is done with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys import graph
from rpcsys.errors import UsageError
from rpcsys.graph import Leased
from rpcsys.module import Module, export_library
from tests.graph.running import chain


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (Leased(""), "has a key"),
        (Leased("board", calls=0), "calls from 1"),
        (Leased("board", wait_s=0), "a wait_s above 0"),
        (Leased("board", deadline_s=-1), "a deadline_s from 0"),
        (Leased("board", target=Leased("board")), "is onnxruntime, reference or tvm"),  # type: ignore[arg-type]
        (Leased("board", target="abacus"), "no target is called 'abacus'"),
        (Leased("board", device="gpu:0"), "'gpu:0' is no name of a device"),
        (Leased("board", board="second"), "board='second' is for stages with a device"),
    ],
)
def test_invalid_arguments_are_refused(place: Leased, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        graph.build(graph.split(chain(), [])[0], place)


def test_a_leased_module_cannot_be_exported(tmp_path: Path) -> None:
    with graph.build(graph.split(chain(), [])[0], Leased("board")) as device:
        assert isinstance(device, Module)
        with pytest.raises(UsageError, match="saves a module of kind 'leased'"):
            export_library(device, tmp_path / "model.so")
