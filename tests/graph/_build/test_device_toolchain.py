"""Libraries for devices of any machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rpcsys import graph
from rpcsys.graph import Leased
from rpcsys.graph._build.device_toolchain import export_for, toolchain_of
from rpcsys.graph._build.leased_module import StageLibrary
from rpcsys.module import container, elf
from tests.graph.running import chain


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
    export_for(session(target), stage, tmp_path / "stage.so")
    assert built_for(tmp_path / "stage.so") == target
    library = StageLibrary(stage, Leased("board"))
    assert built_for(library.path_for(session(target))) == target
    assert library.path_for(session(target)) == library.path_for(session(target))
    assert built_for(library.path_for(session(HERE))) == HERE
