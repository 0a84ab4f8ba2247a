"""The models of the corpus on real devices: in a session, deployed, and divided over leased boards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rpcsys
from rpcsys import graph
from rpcsys.client import ServedModule
from tests.corpus.models import MAKERS, NOT_EXACTLY, Corpus, bits, refused
from tests.live.daemons import START_S, Daemon, Daemons, wait_until

FLAGS = ("--preload", "onnxruntime", "--tvm", "off")
FRAMES = 3
EDGE = "edge"


class Lab:
    """A tracker and two boards, the second with deployments."""

    def __init__(self, daemons: Daemons) -> None:
        self.tracker = daemons.tracker()
        self.boards = [
            daemons.server("board", *FLAGS, *more, tracker=self.tracker, offers=number)
            for number, more in enumerate([(), ("--name", EDGE, "--deploy", str(daemons.folder / "deployed"))], 1)
        ]


@pytest.fixture(scope="module")
def lab(module_daemons: Callable[[], Daemons]) -> Lab:
    return Lab(module_daemons())


@pytest.fixture(scope="module")
def single(module_daemons: Callable[[], Daemons]) -> Daemon:
    return module_daemons().server("single", *FLAGS)


@pytest.fixture
def session(single: Daemon) -> Iterator[rpcsys.client.Session]:
    with rpcsys.connect(*single.address, key="single") as session:
        yield session


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("name", MAKERS)
def test_in_a_session(corpus: Corpus, session: rpcsys.client.Session, name: str) -> None:
    example = corpus[name]
    module = session.load_module(example.path, name=f"{name}/model.onnx")
    assert bits(module.run(example.feeds)) == bits(example.run())


def served(tracker: rpcsys.client.Tracker, name: str) -> ServedModule:
    """A deployed module, once the tracker knows of it."""
    wait_until(lambda: any(row["name"] == name for row in tracker.resolve()), START_S, f"{name} is served")
    return tracker.serve(name)


@pytest.mark.parametrize("name", MAKERS)
def test_deployed(corpus: Corpus, lab: Lab, name: str) -> None:
    example = corpus[name]
    with rpcsys.connect_tracker(lab.tracker.where) as tracker, tracker.deployment(EDGE) as deployment:
        deployment.put(example.path, name)
        with served(tracker, name) as module:
            assert bits(module.run(example.feeds)) == bits(example.run())
        deployment.remove(name)


@pytest.mark.parametrize("name", MAKERS)
def test_pipelined_on_leased_boards(corpus: Corpus, lab: Lab, name: str) -> None:
    example = corpus[name]
    with refused(NOT_EXACTLY.get(name)):
        stages = graph.split(example.path, example.cuts(), exact=True)
        board: Any = graph.Leased("board", lab.tracker.where)
        with graph.Pipeline(stages, {stage.name: board for stage in stages}) as pipeline:
            made = list(pipeline.run([example.feeds] * FRAMES))
        assert [bits(each) for each in made] == [bits(example.run("BASIC"))] * FRAMES


def test_deployed_from_the_shell(corpus: Corpus, lab: Lab, tmp_path: Path) -> None:
    """From another folder than the model's."""
    example = corpus["weights_apart.many_files"]
    command = ["deploy", str(example.path), "--tracker", lab.tracker.where, "--to", EDGE, "--name", "shell"]
    done = subprocess.run(
        [sys.executable, "-m", "rpcsys", *command], cwd=tmp_path, env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    with rpcsys.connect_tracker(lab.tracker.where) as tracker:
        with served(tracker, "shell") as module:
            assert bits(module.run(example.feeds)) == bits(example.run())
        with tracker.deployment(EDGE) as deployment:
            deployment.remove("shell")
