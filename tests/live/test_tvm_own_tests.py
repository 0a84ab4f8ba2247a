"""TVM's own test files run, unchanged, on boards: by the plugin, and with `rpcsys.tvm.Runner` in RPCRunner's place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcsys.lab import Lab
from tests.live.daemons import START_S, wait_until
from tests.live.tvm_own_tests import tvm_test

pytest.importorskip("tvm")
pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

KEYS = ["jetson", "pico", "rpi4"]
FILE = "runtime/test_runtime_rpc.py"
PAGE = Path(__file__).parents[2] / "docs" / "pytest.md"
#: Of the file's 23 tests, those that need a server and nothing else: no tracker or proxy of TVM's, no second server, no
#: PowerPC, and no source of TVM's that its wheel does not have.
ON_A_BOARD = "not (tracker or session or remote_ or bigendian or local)"
TESTS = 10
RUN_S = 600
#: What the file uses under names that later releases have changed. And no server starts but the boards'.
CONFTEST = """
import tvm.base, tvm.contrib, tvm.rpc, tvm.testing
from tvm.support import cc, utils

tvm.rpc.Server = None
tvm.contrib.cc, tvm.contrib.utils = cc, utils
tvm.base.TVMError = RuntimeError
tvm.testing.requires_rpc = tvm.testing.requires_llvm = lambda test: test
"""
RUNNERS_FILE = "s_tir/meta_schedule/test_meta_schedule_runner.py"
#: The file's tests of RPCRunner; the others are LocalRunner's, and one of a class of TVM's. TVM skips most: they tune.
OF_RUNNERS = "test_meta_schedule_rpc_ or test_meta_schedule_runner_"
RUNNERS_CONFTEST = """
import os
import tvm.ir.utils, tvm.s_tir.meta_schedule.utils, tvm.testing, tvm.tirx.script.parser.parser
from tvm.s_tir.meta_schedule import builder, runner
from tvm.s_tir.meta_schedule.builder.local_builder import default_export
from tvm.s_tir.meta_schedule.testing import local_rpc
from rpcsys.tvm import Runner  # before its place is taken: it uses RPCRunner itself


class Lab:
    tracker_host, tracker_key, tracker_port = "127.0.0.1", "rpi4", int(os.environ["LAB_PORT"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Builder:
    # TVM's LocalBuilder, in this process: each process of that first imports for 10 to 60 s.

    def build(self, inputs):
        paths = [default_export(tvm.tirx.build(one.mod, target=one.target)) for one in inputs]
        return [builder.BuilderResult(path, None) for path in paths]


def in_its_place(where, config, **functions):
    address, timeout_s = (where.tracker_host, where.tracker_port), where.session_timeout_sec
    return Runner(
        where.tracker_key, address, evaluator_config=config, timeout_s=timeout_s, store=None, **functions
    )


local_rpc.LocalRPC, runner.RPCRunner = Lab, in_its_place
builder.LocalBuilder = Builder
tvm.testing.requires_llvm = lambda test: test
tvm.s_tir.meta_schedule.utils.derived_object = tvm.ir.utils.derived_object
parser = tvm.tirx.script.parser.parser
found = parser.find_decorator_annotation
parser.find_decorator_annotation = lambda node, name, default=True: name == "s_tir" or found(node, name, default)


def pytest_collection_modifyitems(items):
    for item in items:
        item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]
"""


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A board of each key."""
    state = str(tmp_path_factory.mktemp("tracker"))
    servers = dict.fromkeys(KEYS, 1)
    with Lab(servers, tracker_args=["--state-dir", state], server_args=["--preload", "tvm"]) as running:
        yield running


def example() -> str:
    """The plugin that the page shows."""
    found = re.search(r"^```python\n# on_the_board\.py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def ran(folder: Path, file: str, conftest: str, *arguments: str, **environment: str) -> str:
    """What pytest prints, in which all tests pass."""
    shutil.copy(tvm_test(file), folder)
    folder.joinpath("conftest.py").write_text(conftest)
    folder.joinpath("pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    env = {**os.environ, "PYTEST_ADDOPTS": "", **environment}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_file_of_tvms_own_runs_on_three_keys(lab: Lab, tmp_path: Path) -> None:
    tmp_path.joinpath("on_the_board.py").write_text(example())
    boards = ["--boards", "all", "--rpcsys-tracker", "{}:{}".format(*lab.tracker_address)]
    printed = ran(tmp_path, FILE, CONFTEST, "-p", "on_the_board", "-k", ON_A_BOARD, *boards)
    assert f"{TESTS * len(KEYS)} passed" in printed
    with lab.connect() as tracker:
        wait_until(lambda: len(tracker.history(limit=None)) >= TESTS * len(KEYS), START_S, "each test had a lease")
        leases = tracker.history(limit=None)
    assert Counter(lease["key"] for lease in leases) == dict.fromkeys(KEYS, TESTS)
    assert {(lease["outcome"], lease["fault"]) for lease in leases} == {("closed", "")}


def test_tvms_tests_of_its_runner_pass_with_ours_in_its_place(lab: Lab, tmp_path: Path) -> None:
    port = str(lab.tracker_address[1])
    assert "6 passed" in ran(tmp_path, RUNNERS_FILE, RUNNERS_CONFTEST, "-k", OF_RUNNERS, LAB_PORT=port)
    with lab.connect() as tracker:  # one of the tests refuses each session
        wait_until(lambda: len(tracker.history(limit=None)) == 5, START_S, "each test had a lease of ours")
