"""`rpcsys.tvm.Runner` with functions that replace parts of TVM's RPCRunner, which then measures on our daemons."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.live.daemons import START_S, Daemon, Daemons, alive, descendants, queue, wait_free, wait_until
from tests.live.tuned import BODIES, compiled, inputs, results, running

pytest.importorskip("tvm")
KEY = "board"
LONG_S = 600.0
pytestmark = pytest.mark.timeout(180)  # each process of TVM's pool imports TVM


@pytest.fixture
def tracker(daemons: Daemons) -> Daemon:
    started = daemons.tracker()
    daemons.server(KEY, tracker=started)
    return started


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return compiled(tmp_path / "candidates", "well", BODIES["well"])


def test_functions_replace_parts_of_tvms_runner(tracker: Daemon, library: Path) -> None:
    def evaluate(session: Any, module: Any, device: Any, config: Any, arguments: Any) -> list[float]:
        module["main"](*arguments[0])
        return [float(config.number), float(len(arguments)), float(arguments[0][0].numpy().size)]

    with running(tracker, KEY, f_run_evaluator=evaluate, alloc_repeat=2, timeout_s=60.0) as runner:
        found = results(runner, [library, library.with_name("none.so")])
        assert found[0].error_msg is None
        assert [float(each) for each in found[0].run_secs] == [1.0, 2.0, 4.0]
        assert found[1].run_secs is None
        assert found[1].error_msg.startswith("RPCRunner: An exception occurred\n")
        assert (runner.counts, runner.boards) == ({"measured": 1, "known": 0}, 1)
        assert repr(runner) == f"<rpcsys runner on {KEY}, {{'measured': 1, 'known': 0}}>"
        wait_free(tracker, KEY, 1, START_S)  # it holds no board between candidates


def test_a_function_that_hangs_ends_with_the_runner(tracker: Daemon, library: Path) -> None:
    def hang(*_: Any) -> list[float]:
        time.sleep(LONG_S)
        return []

    before = {*descendants(os.getpid())}
    with running(tracker, KEY, f_run_evaluator=hang, timeout_s=LONG_S) as runner:
        futures = runner.run(inputs([library, library]))
        wait_until(lambda: queue(tracker, KEY)["free"] == 0, START_S, "it has its board")
        started = {*descendants(os.getpid())} - before
    for future in futures:
        assert future.result().error_msg.startswith("RPCRunner: An exception occurred\n")
    wait_until(lambda: not any(map(alive, started)), START_S, "its processes have ended")
    wait_free(tracker, KEY, 1, START_S)
