"""TVM's tuner measures functions through our tracker and server, four at a time."""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.artefacts import LENGTH, Artefacts
from tests.live.daemons import START_S, Daemons, queue, wait_free, wait_until
from tests.live.ways import every_way

pytest.importorskip("tvm")
pytestmark = every_way
KEY = "board"
AT_ONCE = 4
CANDIDATES = 8
TRIALS = 16  # of the tuner


@pytest.mark.timeout(300)
@pytest.mark.parametrize("flavour", ["ours", "ctypes", "bare"])
def test_rpc_runner_measures_four_at_a_time(
    daemons: Daemons, artefacts: Artefacts, flavour: str, tmp_path: Path
) -> None:
    from tvm.s_tir import meta_schedule as ms

    tracker = daemons.tracker()
    daemons.server(KEY, "--slots", str(AT_ONCE), tracker=tracker, flavour=flavour, offers=AT_ONCE)
    host, port = tracker.address
    runner = ms.runner.RPCRunner(
        ms.runner.RPCConfig(tracker_host=host, tracker_port=port, tracker_key=KEY, session_timeout_sec=60),
        ms.runner.EvaluatorConfig(number=3, repeat=2, min_repeat_ms=200),
        max_workers=AT_ONCE,
    )
    # Each worker needs seconds to import tvm before its first measurement: let all import it now.
    for started in [runner.pool.submit(time.sleep, 0.5) for _ in range(AT_ONCE)]:
        started.result()
    spec = ms.arg_info.TensorInfo("float32", (LENGTH,))
    inputs = []
    for index in range(CANDIDATES):
        path = shutil.copy(artefacts.addone, tmp_path / f"candidate{index}.so")
        inputs.append(ms.runner.RunnerInput(str(path), "cpu", [spec, spec]))
    futures = runner.run(inputs)
    wait_until(lambda: queue(tracker, KEY)["free"] == 0, START_S, "all slots are in use at once", 0.005)
    for future in futures:
        result = future.result()
        assert result.error_msg is None
        assert len(result.run_secs) == 2
        assert all(0 < float(seconds) < 1 for seconds in result.run_secs)
    wait_free(tracker, KEY, AT_ONCE, START_S)


#: Where Python says that code is which has no file.
NO_FILES = ("<ast>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


@pytest.fixture
def tuner_log() -> Iterator[None]:
    """TVM's log as a new process has it: its tuner fails where the log has handlers of an earlier run.

    Its import asks for the source of each frame, some hundred times. Python then looks through all modules for a frame
    without a file, which takes a minute with those of all tests, unless it knows a module.
    """
    for name in NO_FILES:
        inspect.modulesbyfile.setdefault(os.path.normcase(os.path.abspath(name)), "__main__")
    log = logging.getLogger("tvm.s_tir.meta_schedule")
    before = log.handlers[:], log.propagate
    yield
    for handler in {*log.handlers} - {*before[0]}:
        handler.close()
    log.handlers[:], log.propagate = before


def builder_here() -> Any:
    """TVM's builder in this process: each process of TVM's own imports TVM first, and is ended if that takes 30 s."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.builder import local_builder

    @derived_object
    class Here(ms.builder.PyBuilder):
        def build(self, build_inputs: list[Any]) -> list[Any]:
            built = [local_builder.default_build(each.mod, each.target, each.params) for each in build_inputs]
            return [ms.builder.BuilderResult(local_builder.default_export(each), None) for each in built]

    return Here()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("tuner_log")
def test_a_function_is_tuned_on_a_leased_board(daemons: Daemons, tmp_path: Path) -> None:
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    left, right = (te.placeholder((64, 64), name=name) for name in ("left", "right"))
    inner = te.reduce_axis((0, 64), name="inner")
    product = te.compute((64, 64), lambda i, j: te.sum(left[i, inner] * right[inner, j], axis=inner), name="product")
    host, port = tracker.address
    runner = ms.runner.RPCRunner(
        ms.runner.RPCConfig(tracker_host=host, tracker_port=port, tracker_key=KEY, session_timeout_sec=60),
        ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=10),
        max_workers=1,
    )
    database = ms.tune_tir(
        te.create_prim_func([left, right, product]),
        tvm.target.Target({"kind": "llvm", "num-cores": 1}),
        str(tmp_path),
        max_trials_global=TRIALS,
        num_trials_per_iter=TRIALS,
        runner=runner,
        builder=builder_here(),
        cost_model="random",
        num_tuning_cores=1,
        seed=1,
    )
    records = database.get_all_tuning_records()
    assert len(records) == TRIALS
    assert any(float(seconds) < 1 for record in records for seconds in record.run_secs)
    wait_free(tracker, KEY, 1, START_S)
