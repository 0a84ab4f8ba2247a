from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcsys import graph
from rpcsys.errors import FrameError, UsageError
from rpcsys.graph import Pipeline, PipelineStage, samples
from tests.combinations import NETWORKS, usual
from tests.graph.networks import stage_counts
from tests.graph.running import assert_same
from tests.graph.running import chain as chain_of_nodes
from tests.graph.running import run as run_whole
from tests.graph.trace_format import check_format

DEADLINE_S = 20


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE_S)  # a thread that takes frames for an event loop ends soon after it
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []


def double(x: int) -> int:
    return 2 * x


def refuse_three(x: int) -> int:
    if x == 3:
        raise ValueError("three is\nnot wanted")
    return x


def chain(*functions: Any, **more: Any) -> Pipeline:
    stages = [(f"s{n}", function, [f"t{n}"], [f"t{n + 1}"]) for n, function in enumerate(functions)]
    return Pipeline(stages, **more)


def test_results_come_in_the_order_of_the_frames() -> None:
    with chain(double, double, replicas={"s0": 3}) as pipeline:
        assert list(pipeline.run(range(100))) == [4 * x for x in range(100)]
        assert list(pipeline.run([])) == []
        assert (pipeline.inputs, pipeline.outputs) == (("t0",), ("t2",))
        figures = pipeline.figures()
    assert [figures[name].frames for name in ("s0", "s1")] == [100, 100]


def test_a_result_has_the_form_of_its_frame() -> None:
    stages = [("b", lambda a, x: (a + x, a - x), ["a", "x"], ["y", "z"]), ("a", double, ["x"], ["a"])]
    with Pipeline(stages, outputs=["y", "z", "x"]) as pipeline:
        assert pipeline.submit(5).result(DEADLINE_S) == (15, 5, 5)
        assert pipeline.submit({"x": 5}).result(DEADLINE_S) == {"y": 15, "z": 5, "x": 5}


def test_stages_run_at_the_same_time() -> None:
    meeting = threading.Barrier(4)  # three stages and a replica: each call waits for the three others

    def meet(x: int) -> int:
        meeting.wait(DEADLINE_S)
        return x

    stages = [
        PipelineStage("first", double, ["x"], ["a"]),
        PipelineStage("left", meet, ["a"], ["b"], replicas=2),
        PipelineStage("right", [meet, meet], ["a"], ["c"]),
        PipelineStage("join", lambda b, c: b + c, ["b", "c"], ["y"]),
    ]
    with Pipeline(stages) as pipeline:
        assert list(pipeline.run(range(8))) == [4 * x for x in range(8)]


def test_tensors_are_passed_without_copies_and_released() -> None:
    seen: list[Any] = []

    def look(x: Any) -> Any:
        seen.append(x)
        return x

    array = np.zeros(4)
    with chain(look, look) as pipeline:
        assert pipeline.submit(array).result(DEADLINE_S) is array
        assert all(each is array for each in seen)
        assert pipeline.figures()["s0"].bytes == array.nbytes


def test_frames_are_taken_only_up_to_the_limit() -> None:
    taken: list[int] = []
    gate = threading.Event()

    def frames() -> Iterator[int]:
        for frame in range(100):
            taken.append(frame)
            yield frame

    def held(x: int) -> int:
        assert gate.wait(DEADLINE_S)
        return x

    with chain(double, held, queue=1) as pipeline:
        assert pipeline.limit == 4
        outputs: list[int] = []
        reader = threading.Thread(target=lambda: outputs.extend(pipeline.run(frames())))
        reader.start()
        futures = []
        while len(taken) < pipeline.limit:
            gate.wait(0.001)
        reader.join(0.05)
        assert len(taken) <= pipeline.limit + 1
        gate.set()
        reader.join(DEADLINE_S)
        assert outputs == [2 * x for x in range(100)]
        futures = [pipeline.submit(1) for _ in range(20)]
        assert [future.result(DEADLINE_S) for future in futures] == [2] * 20


def test_tensors_stay_where_onnxruntime_put_them() -> None:
    stages = graph.split(chain_of_nodes(6), [2, 4])
    built = {stage.name: graph.build(stage) for stage in stages}
    places: dict[str, list[int]] = {name: [] for name in built}

    def noting(name: str) -> Any:
        def run(x: Any) -> Any:
            made = built[name](x)
            places[name] += [array.__array_interface__["data"][0] for array in (x, made)]
            return made

        return run

    frame = np.zeros((2, 3), "float32")
    with Pipeline(stages, {name: noting(name) for name in built}) as pipeline:
        output = pipeline.submit(frame).result(DEADLINE_S)
    ends = [places["stage0"][0], places["stage2"][1]]
    assert ends == [array.__array_interface__["data"][0] for array in (frame, output)]
    assert places["stage0"][1] == places["stage1"][0]
    assert places["stage1"][1] == places["stage2"][0]


def test_an_error_belongs_to_its_frame() -> None:
    with chain(double, lambda x: refuse_three(x // 2), double) as pipeline:
        outputs = list(pipeline.run(range(6)))
        assert [x for x in outputs if not isinstance(x, FrameError)] == [0, 2, 4, 8, 10]
        error = outputs[3]
        assert str(error) == "frame 3 failed in stage 's1': ValueError: three is not wanted"
        assert (error.frame, error.stage, type(error.__cause__)) == (3, "s1", ValueError)
        assert pipeline.figures()["s1"].failed == 1
        with pytest.raises(FrameError, match="failed in stage 's1'") as raised:
            list(pipeline.run([3, 4, 5], stop_on_error=True))
        assert raised.value.frame == 6  # counted over all frames of the pipeline
        assert pipeline.submit(7).result(DEADLINE_S) == 14


def test_a_wrong_number_of_outputs_and_an_exit_are_the_frames_errors() -> None:
    def leave(_: int) -> int:
        raise SystemExit(3)

    with Pipeline([("s", double, ["x"], ["a", "b"])]) as pipeline:
        with pytest.raises(FrameError, match=r"it gave 1 output\(s\), not 2"):
            pipeline.submit(1).result(DEADLINE_S)
    with chain(leave) as pipeline:
        with pytest.raises(FrameError, match="SystemExit"):
            pipeline.submit(1).result(DEADLINE_S)


def test_a_cancelled_frame_is_dropped() -> None:
    gate, began = threading.Event(), threading.Event()
    behind: list[int] = []

    def held(x: int) -> int:
        began.set()
        assert gate.wait(DEADLINE_S)
        return x

    with chain(held, behind.append) as pipeline:
        first, second, third = (pipeline.submit(x) for x in range(3))
        assert began.wait(DEADLINE_S)
        assert first.cancel()
        assert second.cancel()
        assert wait([first, second], DEADLINE_S).not_done == set()
        gate.set()
        third.result(DEADLINE_S)
        assert behind == [2]


def test_ending_the_loop_early_cancels_the_rest_only() -> None:
    with chain(double, double) as pipeline:
        run = pipeline.run(range(1000))
        assert next(run) == 0
        run.close()  # type: ignore[attr-defined]
        assert list(pipeline.run([5])) == [20]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_close_times_out_on_a_function_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcsys.graph._pipeline.pipeline._END_TIMEOUT_S", 0.1)
    gate, began = threading.Event(), threading.Event()

    def hang(x: int) -> None:
        began.set()
        gate.wait(DEADLINE_S)

    pipeline = chain(double, hang)
    future = pipeline.submit(1)
    assert began.wait(DEADLINE_S)
    with pytest.warns(RuntimeWarning, match="^s1 #0 did not return within 0.1 s; left running$"):
        pipeline.close(0.1)
    assert future.cancelled()
    gate.set()
    pipeline.close(DEADLINE_S)


def test_close_cancels_the_frames_under_way() -> None:
    gate, began = threading.Event(), threading.Event()

    def held(x: int) -> int:
        began.set()
        assert gate.wait(DEADLINE_S)
        return x

    pipeline = chain(held, double, queue=1)
    futures = [pipeline.submit(x) for x in range(pipeline.limit)]
    errors: list[BaseException] = []

    def one_more() -> None:
        try:
            pipeline.submit(9)
        except UsageError as error:
            errors.append(error)

    waiter = threading.Thread(target=one_more)
    waiter.start()
    assert began.wait(DEADLINE_S)
    closer = threading.Thread(target=pipeline.close)
    closer.start()
    waiter.join(DEADLINE_S)
    assert "was closed" in str(errors[0])
    gate.set()
    closer.join(DEADLINE_S)
    assert not closer.is_alive()
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(DEADLINE_S)
    pipeline.close()
    with pytest.raises(UsageError, match="was closed"):
        pipeline.submit(1)


def test_in_an_event_loop() -> None:
    async def frames() -> AsyncIterator[int]:
        for frame in range(30):
            yield frame

    async def outputs(pipeline: Pipeline) -> list[list[Any]]:
        async def some(source: Any) -> list[Any]:
            return [x async for x in pipeline.run_async(source)]

        first, second = await asyncio.gather(some(frames()), some(range(30)))
        with pytest.raises(FrameError):
            [x async for x in pipeline.run_async([3], stop_on_error=True)]
        assert await asyncio.wrap_future(pipeline.submit(4)) == 8
        return [first, second]

    with chain(refuse_three, double, queue=1) as pipeline:
        for each in asyncio.run(outputs(pipeline)):
            assert isinstance(each[3], FrameError)
            assert each[:3] + each[4:] == [2 * x for x in range(30) if x != 3]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no CPU affinity")
def test_a_stage_is_bound_to_its_cpus() -> None:
    here = os.sched_getaffinity(0)
    last = max(here)
    with chain(lambda _: os.sched_getaffinity(0), lambda x: (x, os.sched_getaffinity(0)), cpus={"s0": [last]}) as p:
        assert p.submit(0).result(DEADLINE_S) == ({last}, here)
    assert os.sched_getaffinity(0) == here


def test_the_trace_shows_every_run(tmp_path: Path) -> None:
    with chain(double, refuse_three) as pipeline:
        list(pipeline.run(range(5)))
        pipeline.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_format(trace)
    runs = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert sorted((run["cat"], run["args"]["frame"]) for run in runs) == [
        (stage, frame) for stage in ("s0", "s1") for frame in range(5)
    ]


def test_with_progress_the_results_are_the_same(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with chain(double) as pipeline:
        assert list(pipeline.run(range(5), progress=True)) == [0, 2, 4, 6, 8]
        assert capfd.readouterr().err == ""  # no terminal
        monkeypatch.setattr(sys, "stderr", None)  # closed, as by 2>&-
        assert list(pipeline.run(range(5), progress=True)) == [0, 2, 4, 6, 8]


@st.composite
def networks(draw: st.DrawFn) -> list[PipelineStage]:
    """Stages of sums: each takes some of the tensors before it, and makes one or two."""
    tensors = ["x"]
    stages = []
    for number in range(draw(st.integers(1, 6))):
        takes = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        made = [f"t{number}.{place}" for place in range(draw(st.integers(1, 2)))]

        def run(*args: int, count: int = len(made), number: int = number) -> Any:
            values = tuple(hash((number, place, args)) for place in range(count))
            return values if count > 1 else values[0]

        stages.append(PipelineStage(f"s{number}", run, takes, made, replicas=draw(st.integers(1, 3))))
        tensors += made
    return stages


@settings(max_examples=40, deadline=None)
@given(stages=networks(), queue=st.integers(1, 3), shuffled=st.randoms())
def test_any_graph_gives_the_results_of_its_stages_in_sequence(
    stages: list[PipelineStage], queue: int, shuffled: Any
) -> None:
    def whole(x: int) -> dict[str, int]:
        values: dict[str, Any] = {"x": x}
        for stage in stages:
            made = stage.functions[0](*(values[name] for name in stage.inputs))
            values.update(zip(stage.outputs, made if len(stage.outputs) > 1 else [made], strict=True))
        return values

    mixed = list(stages)
    shuffled.shuffle(mixed)
    with Pipeline(mixed, inputs=["x"], queue=queue) as pipeline:
        for x, output in enumerate(pipeline.run({"x": x} for x in range(20))):
            expected = whole(x)
            assert output == {name: expected[name] for name in pipeline.outputs}


def test_squeezenet_in_stages_gives_the_same_bits() -> None:
    network = samples.light_model("squeezenet", seed=1)
    frames = [np.random.default_rng(n).random((1, 3, 224, 224), "float32") for n in range(4)]
    whole = graph.build(graph.split(network, [], exact=True))
    stages = graph.split(network, [20, 40], exact=True)
    with Pipeline(stages, replicas={"stage1": 2}) as pipeline:
        for frame, output in zip(frames, pipeline.run(frames), strict=True):
            np.testing.assert_array_equal(output, whole(frame))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", usual(samples.names(), NETWORKS.__contains__))
def test_every_real_network_in_any_number_of_stages_gives_the_same_bits(name: str) -> None:
    network = samples.light_model(name, seed=1)
    taken = network.graph.input[0].name
    frames = [np.random.default_rng(n).random((1, 3, 224, 224), "float32") for n in range(3)]
    whole = [run_whole(network, {taken: frame}) for frame in frames]
    for count in stage_counts(name):
        places = [len(network.graph.node) * i // count for i in range(1, count)]
        with Pipeline(graph.split(network, places, exact=True)) as pipeline:
            for expected, output in zip(whole, pipeline.run({taken: frame} for frame in frames), strict=True):
                assert_same(output, expected)
