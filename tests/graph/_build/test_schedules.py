"""Which targets have schedules of their own; tests/live/test_chips.py runs programs with them."""

from __future__ import annotations

from typing import Any

import pytest

from rpcsys.graph._build import schedules


@pytest.mark.parametrize(
    ("target", "own"),
    [({"kind": "opencl", "device": "cpu"}, True), ({"kind": "opencl"}, False), ({"kind": "llvm"}, False)],
)
def test_opencl_devices_that_are_cpus_have_schedules_of_their_own(target: dict[str, Any], own: bool) -> None:
    tvm = pytest.importorskip("tvm")
    assert (schedules.pipeline(tvm.target.Target(target)) != "default") is own


@pytest.mark.parametrize(
    ("extents", "spatial", "tile"),
    [
        ([1, 4096, 9216], 2, (1, 256, 16)),
        ([1, 1000, 4096], 2, (1, 200, 8)),
        ([1, 1, 55, 54, 64, 3, 3, 3], 5, (9, 32, 16)),
        ([1, 7, 3], 2, None),
        ([4], 0, None),
    ],
)
def test_a_tile_divides_the_outputs(extents: list[int], spatial: int, tile: tuple[int, int, int] | None) -> None:
    assert schedules._tile(extents, spatial) == tile
