"""Pipelines with stages on leased devices, some of which die while they run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rpcsys import graph
from rpcsys.errors import UnknownKey
from rpcsys.graph import Leased, Pipeline, Stages
from rpcsys.graph.leasing import LeasedModule
from tests.graph.running import chain, numbers
from tests.live.daemons import Daemon, Daemons, wait_free

pytestmark = pytest.mark.live

FRAMES = 60
QUICK = ("--preload", "none")


def frames() -> Iterator[Any]:
    return (numbers(2, 3, seed=n) for n in range(FRAMES))


def check(pipeline: Pipeline, in_the_middle: Callable[[], None] = lambda: None) -> None:
    """All frames run, none lost and in their order, whatever happens after the twentieth."""
    number = 0
    for number, (x, out) in enumerate(zip(frames(), pipeline.run(frames()), strict=True), 1):
        np.testing.assert_array_equal(out, np.maximum(-np.maximum(-x, 0), 0))
        if number == 20:
            in_the_middle()
    assert number == FRAMES


def leased(stages: Stages, tracker: Daemon, **more: Any) -> LeasedModule:
    device = graph.build(stages["stage1"], Leased("board", tracker.where, **more))
    assert isinstance(device, LeasedModule)
    return device


def boards(daemons: Daemons, count: int) -> tuple[Daemon, list[Daemon]]:
    tracker = daemons.tracker()
    return tracker, [daemons.server("board", *QUICK, tracker=tracker, offers=n) for n in range(1, count + 1)]


def test_another_device_takes_over_from_one_that_is_killed(daemons: Daemons) -> None:
    tracker, servers = boards(daemons, 2)
    stages = graph.split(chain(), [1, 3])
    with leased(stages, tracker) as device:

        def kill() -> None:
            assert device.session is not None
            next(each for each in servers if each.address == device.session.address).kill()

        with Pipeline(stages, {"stage1": device}) as pipeline:
            check(pipeline, kill)
            assert device.session is not None
            left = next(each for each in servers if each.running())
            assert device.session.address == left.address
    wait_free(tracker, "board", 1, 20)


def test_the_same_server_comes_back(daemons: Daemons) -> None:
    tracker, (server,) = boards(daemons, 1)

    def restart() -> None:
        server.kill()
        daemons.server("board", *QUICK, "--tracker", tracker.where)  # leased as soon as it is there

    with Pipeline(graph.split(chain(), [2]), {"stage1": Leased("board", tracker.where)}) as pipeline:
        check(pipeline, restart)
    wait_free(tracker, "board", 1, 20)


def test_only_the_session_dies(daemons: Daemons) -> None:
    tracker, _ = boards(daemons, 1)
    stages = graph.split(chain(), [2])
    with leased(stages, tracker, calls=2) as device:

        def kill() -> None:
            assert device.session is not None
            os.kill(device.session.info["pid"], signal.SIGKILL)

        with Pipeline(stages, {"stage1": device}) as pipeline:
            check(pipeline, kill)


def test_two_devices_for_one_stage(daemons: Daemons) -> None:
    tracker, servers = boards(daemons, 2)
    stages = graph.split(chain(), [2])
    board = Leased("board", tracker.where)
    with Pipeline(stages, {"stage1": board}, replicas={"stage1": 2}) as pipeline:
        wait_free(tracker, "board", 0, 20)
        check(pipeline, servers[0].kill)


def test_a_board_without_packages_gets_native_code(daemons: Daemons) -> None:
    pytest.importorskip("tvm")
    tracker = daemons.tracker()
    daemons.server("board", flavour="bare", tracker=tracker)
    board = Leased("board", tracker.where, target="tvm")
    with Pipeline(graph.split(chain(), [2]), {"stage1": board}) as pipeline:
        check(pipeline)


def test_a_key_that_nobody_has_is_said_at_once(daemons: Daemons) -> None:
    tracker = daemons.tracker()
    with pytest.raises(UnknownKey, match="nosuch"):
        Pipeline(graph.split(chain(), [2]), {"stage1": Leased("nosuch", tracker.where)})
