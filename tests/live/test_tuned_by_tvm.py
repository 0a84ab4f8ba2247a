"""TVM's tuner, and the checks that TVM makes of its runners, with `rpcsys.tvm.Runner` in RPCRunner's place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.live import tuned
from tests.live.daemons import START_S, Daemon, Daemons, wait_free
from tests.live.test_metaschedule import tuner_log

pytest.importorskip("tvm")
KEY = "board"
TRIALS = 4
LONG = 2048  # the extents of a product that takes seconds
NOISE = 2.0  # between two measurements of one candidate on a busy machine

__all__ = ["tuner_log"]


def product(extent: int = 64, relu: bool = False) -> Any:
    """A matrix product as a function of TVM's, by default small."""
    from tvm import te

    left, right = (te.placeholder((extent, extent), name=name) for name in ("left", "right"))
    inner = te.reduce_axis((0, extent), name="inner")
    shape = (extent, extent)
    made = te.compute(shape, lambda i, j: te.sum(left[i, inner] * right[inner, j], axis=inner), name="product")
    if relu:
        made = te.compute(shape, lambda i, j: te.max(made[i, j], 0.0), name="relu")  # type: ignore[misc]
    return te.create_prim_func([left, right, made])


def target() -> Any:
    import tvm

    return tvm.target.Target({"kind": "llvm", "num-cores": 1})


def built(function: Any) -> str:
    """The path of the tar of object files that TVM's LocalBuilder makes of it."""
    import tvm

    return exported(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))


def exported(module: Any) -> str:
    """`built` of a module. Not by TVM's builder: the import of all its intrinsics takes many seconds."""
    from tvm.s_tir.meta_schedule.builder.local_builder import default_export
    from tvm.tirx import build

    path: str = default_export(build(module, target=target()))
    return path


def given(path: str, extent: int) -> Any:
    from tvm.s_tir import meta_schedule as ms

    spec = ms.arg_info.TensorInfo("float32", (extent, extent))
    return ms.runner.RunnerInput(path, "cpu", [spec] * 3)


def of_tvm(tracker: Daemon, config: Any) -> Any:
    """TVM's runner."""
    from tvm.s_tir import meta_schedule as ms

    host, port = tracker.address
    where = ms.runner.RPCConfig(tracker_host=host, tracker_port=port, tracker_key=KEY, session_timeout_sec=60)
    return ms.runner.RPCRunner(where, config, max_workers=1)


@pytest.mark.timeout(120)
def test_what_tvm_builds_is_measured_as_its_own_tests_do(daemons: Daemons) -> None:
    paths = [built(product(16)), built(product(32, relu=True)), built(product(LONG))]
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    with tuned.running(tracker, KEY, evaluator_config=tuned.config(repeat=1), timeout_s=1.0) as runner:
        alone = runner.run([given(paths[0], 16)])
        assert [float(seconds) >= 0 for seconds in alone[0].result().run_secs] == [True]
        *several, long = runner.run([given(path, extent) for path, extent in zip(paths, (16, 32, LONG), strict=True)])
        for future in several:
            result = future.result()
            assert result.error_msg is None
            assert all(float(seconds) >= 0 for seconds in result.run_secs)
        assert long.result().run_secs is None
        assert long.result().error_msg.startswith("RPCRunner: An exception occurred")
        assert runner.run([]) == []
    for path in paths:
        shutil.rmtree(Path(path).parent)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("tuner_log")
def test_both_runners_find_the_same_best_schedule(daemons: Daemons, tmp_path: Path) -> None:
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    config = tuned.config(number=3, repeat=3, min_repeat_ms=5)
    theirs = tune(of_tvm(tracker, config), tmp_path / "theirs")
    wait_free(tracker, KEY, 1, START_S)
    store = tmp_path / "results.sqlite"
    with tuned.running(tracker, KEY, evaluator_config=config, store=store) as runner:
        ours = tune(runner, tmp_path / "ours")
        assert runner.counts == {"measured": TRIALS, "known": 0}
    assert ours.keys() == theirs.keys()  # the same candidates
    best = min(ours, key=ours.__getitem__)
    assert theirs[best] <= NOISE * min(theirs.values())
    with tuned.running(tracker, KEY, evaluator_config=config, store=store) as runner:
        assert tune(runner, tmp_path / "again") == ours
        assert runner.counts == {"measured": 0, "known": TRIALS}


def tune(runner: Any, folder: Path) -> dict[str, float]:
    """Tune the product: the least seconds of each candidate, by its schedule."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Builder(ms.builder.PyBuilder):  # type: ignore[misc]
        """Builds in this process."""

        def build(self, inputs: Any) -> Any:
            return [ms.builder.BuilderResult(exported(each.mod), None) for each in inputs]

    database = ms.tune_tir(
        product(),
        target(),
        str(folder),
        max_trials_global=TRIALS,
        num_trials_per_iter=TRIALS,
        builder=Builder(),
        runner=runner,
        database=ms.database.MemoryDatabase(),
        cost_model="random",
        num_tuning_cores=1,
        seed=1,
    )
    records = database.get_all_tuning_records()
    return {str(record.trace): min(map(float, record.run_secs)) for record in records}
