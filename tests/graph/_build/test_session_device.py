"""Calls whose arrays cross encoded, and libraries for devices of any machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from rpcsys import graph
from rpcsys.errors import NotSupported, UsageError
from rpcsys.graph import Leased
from rpcsys.graph._build.session_device import check_encoding, encoded_call, toolchain_of
from rpcsys.graph._build.stage_library import StageLibrary
from rpcsys.module import container, elf
from rpcsys.wire import encoding
from tests.graph.running import chain, numbers


def module(inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> mock.MagicMock:
    made = mock.MagicMock()
    made.inputs, made.outputs = inputs, outputs
    return made


def test_only_arrays_that_the_encoding_applies_to_are_encoded() -> None:
    floats, ints = {"name": "a", "dtype": "float32"}, {"name": "b", "dtype": "int64"}
    sequence = {"name": "c", "dtype": "seq(tensor(float))"}
    remote = module([floats, ints, sequence], [ints, floats])
    encoded_call(remote, "float16")(numbers(2), np.arange(2), [numbers(2)])
    remote["main"].encoding.assert_called_once_with({"1": "float16"})
    (first, second, third), _ = remote["main"].encoding().call_args
    assert isinstance(first, encoding.Encoded)
    assert isinstance(second, np.ndarray)
    assert isinstance(third, list)
    assert encoded_call(remote, "") is remote


def test_the_error_names_a_device_that_cannot_decode() -> None:
    session = mock.MagicMock()
    session.info = {"capabilities": {"encodings": ["zlib"]}}
    check_encoding(session, "zlib", "key:edge")
    check_encoding(session, "", "key:edge")
    with pytest.raises(NotSupported, match="key:edge cannot decode int8"):
        check_encoding(session, "int8+zlib", "key:edge")
    with pytest.raises(UsageError, match="no encoding"):
        check_encoding(session, "gif", "key:edge")


def session(target: Any) -> Any:
    return SimpleNamespace(info={"capabilities": {"target": target}})


HERE = list(elf.here())
BOARDS = [(["aarch64", 64], "aarch64-linux-gnu"), (["arm", 32], "arm-linux-gnueabihf")]


@pytest.mark.parametrize(("target", "toolchain"), [(HERE, None), (["vax", 32], None), (None, None), *BOARDS])
def test_the_target_is_the_device_s(target: Any, toolchain: str | None) -> None:
    assert toolchain_of(session(target)) == (None if target == HERE else toolchain)


def built_for(path: Path) -> list[Any]:
    head = container.read(str(path)).elf
    return [head.machine, head.bits]


@pytest.mark.parametrize("target", [HERE, *(target for target, _ in BOARDS)])
def test_a_stage_without_native_code_is_for_the_device_that_gets_it(target: Any, tmp_path: Path) -> None:
    stage = graph.build(graph.split(chain(), [])[0])
    library = StageLibrary(stage, {"stage0": Leased("board")})
    assert built_for(library.path_for(session(target))) == target
    assert library.path_for(session(target)) == library.path_for(session(target))
    assert built_for(library.path_for(session(HERE))) == HERE
