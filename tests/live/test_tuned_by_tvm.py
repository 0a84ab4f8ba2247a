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
    """One search, whose candidates are measured by both: no two searches of TVM's try the same ones."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    tracker = daemons.tracker()
    daemons.server(KEY, "--slots", "2", tracker=tracker, offers=2)
    config = tuned.config(number=3, repeat=5, min_repeat_ms=5)
    theirs = of_tvm(tracker, config)
    times: list[tuple[float, float]] = []

    @derived_object
    class Both(ms.runner.PyRunner):  # type: ignore[misc]
        """Measures each candidate with both runners, and a second time with ours."""

        def run(self, inputs: Any) -> Any:
            futures = runner.run(inputs)
            own, tvms = ([least(future.result()) for future in each] for each in (futures, theirs.run(inputs)))
            times.extend(zip(own, tvms, strict=True))
            before = runner.counts["measured"]
            assert [least(future.result()) for future in runner.run(inputs)] == own
            assert runner.counts["measured"] == before
            return futures

    with tuned.running(tracker, KEY, boards=1, evaluator_config=config, store=tmp_path / "results.sqlite") as runner:
        tune(Both(), tmp_path / "work")
        assert runner.counts == {"measured": TRIALS, "known": TRIALS}
    assert len(times) == TRIALS
    best = min(times)
    assert best[1] <= NOISE * min(tvms for _, tvms in times)
    wait_free(tracker, KEY, 2, START_S)


def least(result: Any) -> float:
    """The least seconds of a candidate."""
    assert result.error_msg is None
    return min(map(float, result.run_secs))


def tune(runner: Any, folder: Path) -> None:
    """Tune the product."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Builder(ms.builder.PyBuilder):  # type: ignore[misc]
        """Builds in this process."""

        def build(self, inputs: Any) -> Any:
            return [ms.builder.BuilderResult(exported(each.mod), None) for each in inputs]

    ms.tune_tir(
        product(),
        target(),
        str(folder),
        max_trials_global=TRIALS,
        num_trials_per_iter=TRIALS,
        builder=Builder(),
        runner=runner,
        database=ms.database.MemoryDatabase(),
        cost_model="random",
        strategy="replay-trace",  # it samples; evolution would take a minute
        num_tuning_cores=1,
        seed=1,
    )
