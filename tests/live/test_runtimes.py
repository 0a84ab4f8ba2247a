"""Models of LiteRT, OpenVINO and IREE on a board: sent, run, timed, deployed, and as stages of one pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")
pytest.importorskip("iree.runtime")
pytest.importorskip("openvino")

import rpcsys
from rpcsys.cli.commands import run_group
from rpcsys.client import Tracker
from rpcsys.errors import ModelError, RemoteArgumentError, UnknownKey
from rpcsys.graph import Pipeline, PipelineStage, samples
from rpcsys.module import Stage, export_library, graph, load_module
from tests.graph.running import make, node, values
from tests.live.daemons import START_S, Daemon, Daemons, wait_until
from tests.module import runtime_models as models

SUFFIXES = (".tflite", ".xml", ".vmfb")


@pytest.fixture(scope="module")
def lab(module_daemons: Callable[..., Daemons], tmp_path_factory: pytest.TempPathFactory) -> tuple[Daemon, Daemon]:
    """A tracker, and a board that may be deployed to."""
    daemons = module_daemons()
    tracker = daemons.tracker()
    folder = str(tmp_path_factory.mktemp("deployed"))
    flags = ("--name", "board-1", "--preload", "none", "--tvm", "off", "--deploy", folder)
    return tracker, daemons.server("board", *flags, tracker=tracker)


def test_in_a_session(lab: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    with rpcsys.connect_tracker(lab[0].where) as tracker, tracker.request("board") as session:
        able = session.info["capabilities"]
        assert set(SUFFIXES) <= set(able["loads"])
        assert {"litert", "openvino", "iree"} <= set(able["versions"])
        (cpu,) = [device for device in session.devices if device["name"] == "cpu:0"]
        assert {"litert", "openvino", "iree", "onnxruntime"} <= set(cpu["loaders"])
        for suffix in SUFFIXES:
            for name in models.CASES:
                path = models.written(name, suffix, tmp_path)
                here, there = load_module(path, threads=1), session.load_module(path, threads=1)
                assert (there.kind, there.inputs, there.outputs) == (here.kind, here.inputs, here.outputs)
                feeds = dict(zip([each["name"] for each in here.inputs], models.given(name), strict=True))
                for output, array in there.run(feeds).items():
                    np.testing.assert_array_equal(array, here.run(feeds)[output])
            assert there.time_evaluator(number=3)(*feeds.values()).median > 0
            with pytest.raises(RemoteArgumentError, match="wants float32"):
                there(*(array.astype("f8") for array in feeds.values()))
            broken = tmp_path / f"broken{suffix}"
            broken.write_bytes(b"nonsense" * 20)
            with pytest.raises(ModelError, match=rf"broken\{suffix} cannot be loaded by [^\n]*\Z"):
                session.load_module(broken)
        renamed = session.load_module(models.written("perceptron", ".xml", tmp_path), name="other.xml")
        np.testing.assert_allclose(renamed(*models.given("perceptron")), models.expected("perceptron")[0], rtol=1e-5)


def _resolved(tracker: Tracker, name: str) -> bool:
    try:
        return bool(tracker.resolve(name))
    except UnknownKey:
        return False


def test_deployed(lab: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    with rpcsys.connect_tracker(lab[0].where) as connection, connection.deployment("board-1") as deployment:
        for suffix in SUFFIXES:
            name = f"model-{suffix[1:]}"
            deployment.put(models.written("perceptron", suffix, tmp_path), name)
            wait_until(lambda name=name: _resolved(connection, name), START_S, f"the tracker knows {name}")
            with connection.serve(name) as module:
                np.testing.assert_allclose(
                    module(*models.given("perceptron")), models.expected("perceptron")[0], rtol=1e-5
                )
            deployment.remove(name)


def test_a_pipeline_of_three_runtimes(lab: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    """LiteRT here, onnxruntime on the board, IREE in a library on the board."""
    network = make([node("Neg", "scores", "y")], values("scores", shape=("n", 3)), values("y", shape=("n", 3)))
    samples.save(network, tmp_path / "last.onnx")
    first = load_module(models.written("perceptron", ".tflite", tmp_path))
    x = models.given("perceptron")[0]
    with rpcsys.connect_tracker(lab[0].where) as tracker, tracker.request("board") as session:
        last = session.load_module(tmp_path / "last.onnx")
        stages = [PipelineStage("a", first, ["x"], ["scores"]), PipelineStage("b", last, ["scores"], ["y"])]
        with Pipeline(stages) as pipeline:
            for factor, found in zip((1, 2, 3), pipeline.run(x * np.float32(each) for each in (1, 2, 3)), strict=True):
                np.testing.assert_allclose(found, -models.perceptron(x * factor), rtol=1e-4)
        whole = graph(
            [
                Stage("a", first, ["x"], ["scores"]),
                Stage("b", load_module(models.compiled("both", ".vmfb")), ["x", "x"], ["twice", "square"]),
            ],
            inputs=[{"name": "x", "dtype": "float32", "shape": ["n", 4]}],
            outputs=[{"name": "scores"}, {"name": "square"}],
        )
        export_library(whole, tmp_path / "whole.so")
        scores, square = session.load_module(tmp_path / "whole.so")(x)
        np.testing.assert_allclose(scores, models.perceptron(x), rtol=1e-5)
        np.testing.assert_array_equal(square, x * x)


def test_on_the_command_line(lab: tuple[Daemon, Daemon], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(models.written("convolution", ".tflite", tmp_path))
    words = ["run", path, "--key", "board", "--tracker", lab[0].where, "--repeat", "2", "--json"]
    assert run_group(words) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]["features"]["shape"] == [1, 6, 6, 2]


def test_irees_benchmark_program_measures_on_the_board(daemons: Daemons, tmp_path: Path) -> None:
    server = daemons.server("k", "--allow-exec")
    import iree.runtime

    program = Path(iree.runtime.__file__).parents[1] / "_runtime_libs" / "iree-benchmark-module"
    with rpcsys.connect(*server.address, key="k") as session:
        session.push(models.written("perceptron", ".vmfb", tmp_path), "model.vmfb")
        words = ["--module=model.vmfb", "--function=main", "--input=2x4xf32=1", "--benchmark_format=json"]
        ended = session.exec([str(program), *words, "--benchmark_min_time=10x"])
    assert ended.returncode == 0, ended.stderr
    (found,) = json.loads(ended.stdout)["benchmarks"]
    assert found["iterations"] == 10
    assert found["real_time"] > 0


def test_a_board_without_the_package(daemons: Daemons, tmp_path: Path) -> None:
    server = daemons.server("bare", flavour="bare")
    with rpcsys.connect(*server.address, key="bare") as session:
        with pytest.raises(ModelError, match="package ai-edge-litert is not on the board: python3 -m pip install ai-e"):
            session.load_module(models.written("both", ".tflite", tmp_path))
        export_library(load_module(models.compiled("both", ".vmfb")), tmp_path / "both.so")
        with pytest.raises(ModelError, match=r"holds rpcsys\.iree, which .*; package iree-base-runtime is not on the"):
            session.load_module(tmp_path / "both.so")
