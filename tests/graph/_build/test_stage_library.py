"""The library of stages that are one call."""

from __future__ import annotations

import pytest

from rpcsys import graph, module
from rpcsys.errors import UsageError
from rpcsys.graph import Leased, Tvm
from rpcsys.graph._build.build import segment_library
from rpcsys.graph._build.stage_library import PlacedStage, StageLibrary
from rpcsys.module.kinds.graph import GraphModule
from tests.graph.running import assert_same, chain, numbers, run


def on(device: str, **more: int) -> Leased:
    return Leased("board", device=device, **more)


def test_it_takes_and_gives_what_crosses_and_names_the_devices() -> None:
    stages = graph.split(chain(), [1, 2, 3])
    library = segment_library(stages.part(stages[1:3]), {"stage1": on("cpu:0"), "stage2": on("cpu:0", calls=7)})
    assert (library.name, library.calls) == ("stage1+stage2", 7)
    assert library.stages == (PlacedStage("stage1", "cpu:0"), PlacedStage("stage2", "cpu:0"))
    with module.load_module(library.path()) as loaded:
        assert isinstance(loaded, GraphModule)
        assert [value["name"] for value in (*loaded.inputs, *loaded.outputs)] == ["t1", "t3"]
        assert [stage["device"] for stage in loaded.graph["stages"]] == ["cpu:0", "cpu:0"]
        x = numbers(2, 3)
        assert_same(loaded.run({"t1": -x}), {"t3": -run(chain(2), {"x": x})["y"]})


def test_every_device_has_two_calls_under_way_at_least() -> None:
    stages = graph.split(chain(), [1, 2])
    targets = {"stage0": on("cpu:0", calls=1), "stage1": on("opencl:0", calls=1), "stage2": on("vulkan:0", calls=1)}
    assert segment_library(stages, targets).calls == 6


def test_stages_of_one_board_have_one_toolchain() -> None:
    built = graph.build(graph.split(chain(), [])[0])
    targets = {name: Leased("board", target=Tvm(toolchain=chain_)) for name, chain_ in (("a", ""), ("b", "arm"))}
    with pytest.raises(UsageError, match="stages of one board have one toolchain"):
        StageLibrary(built, targets)
