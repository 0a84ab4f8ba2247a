"""A whole model as one library, loaded here, in a session and by TVM: its outputs are those of the plain model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys import graph, module
from rpcsys.errors import ModelError, UnknownKey
from rpcsys.graph import samples
from rpcsys.lab import Lab
from rpcsys.module.sources import Sources
from tests.device_files import ROOT
from tests.native import FUNCTIONS, compiled
from tests.test_device_tier import board, serving  # noqa: F401 - a fixture

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.timeout(300)

PREPROCESS = Path(__file__).parent.parent / "module" / "kinds" / "preprocess.c"
MEAN = np.array([0.485, 0.456, 0.406], "f4")
#: The cuts after the second and the third group of blocks, as shares of the nodes.
CUTS = (0.4, 0.8)
OPTIONS = {"level": "basic", "threads": 1}


def image() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (224, 224, 3), "u1")


def prepared(picture: np.ndarray) -> np.ndarray:
    return (picture.astype("f4") / np.float32(255) - MEAN).transpose(2, 0, 1)[None].copy()


class Whole:
    """A plain ResNet-50, its stages and its output."""

    def __init__(self, folder: Path) -> None:
        self.model = samples.light_model("resnet50", seed=1)
        count = len(self.model.graph.node)
        self.stages = graph.split(self.model, [int(count * cut) for cut in CUTS], exact=True)
        self.head = folder / "head.onnx"
        self.stages[-1].save(self.head)
        plain = module.onnx_module(self.model, **OPTIONS)
        self.answer = plain(prepared(image()))

    def library(self, tracker: str) -> module.GraphModule:
        """Preprocessing in C, two ONNX stages that share weights, and the last stage on a server."""
        first, second, last = self.stages
        weights = {**module.weights_of(first.model, second.model), "mean": MEAN}
        shared = module.params(weights)
        local = [module.onnx_module(stage.model, params=shared, **OPTIONS) for stage in (first, second)]
        there = module.remote("edge.head", key="edge", tracker=tracker)
        stages = [
            module.Stage(
                "prepare", Sources([PREPROCESS]), ["image", "mean"], ["x"], "prepare", [("float32", [1, 3, "h", "w"])]
            ),
            *(
                module.Stage(
                    stage.name, runs, [each.name for each in stage.inputs], [each.name for each in stage.outputs]
                )
                for stage, runs in zip((first, second, last), (*local, there), strict=True)
            ),
        ]
        (given,), (wanted,) = self.stages.inputs, self.stages.outputs
        stages[0] = stages[0]._replace(outputs=[given.name])
        return module.graph(
            stages,
            [{"name": "image", "dtype": "uint8", "shape": ["h", "w", 3]}],
            [{"name": wanted.name, "dtype": "float32", "shape": [1, 1000]}],
            params=shared,
        )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Whole(tmp_path_factory.mktemp("resnet"))


@pytest.fixture(scope="module")
def lab(whole):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_MODEL", str(whole.head))
        patch.setenv("PYTHONPATH", str(ROOT))
        with Lab({"edge": 1, "cpu": 1}, server_args=["--import", "tests.live.edge_functions"]) as running:
            yield running


@pytest.fixture(scope="module")
def library(whole, lab, tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "model.so"
    module.export_library(whole.library(lab.tracker_address), path)
    return path


def test_the_library_has_its_modules_and_weights(library):
    found = module.inspect(library)
    assert [each.kind for each in found.modules] == [
        "rpcsys.graph", "_lib", "rpcsys.onnx", "rpcsys.params", "rpcsys.onnx", "rpcsys.remote",
    ]  # fmt: skip
    root, _native, first, weights, second, _head = found.modules
    assert root.imports == (1, 2, 4, 5, 3)
    assert first.imports == second.imports == (3,)
    assert weights.size > 30e6


def test_the_library_runs_here(library, whole):
    with module.load_module(library) as model:
        assert np.array_equal(model(image()), whole.answer)
        (name,) = [value["name"] for value in model.outputs]
        assert np.array_equal(model.run({"image": image()})[name], whole.answer)
    assert whole.answer.std() > 0


def test_a_second_export_gives_the_same_file(library, whole, lab, tmp_path):
    module.export_library(whole.library(lab.tracker_address), tmp_path / "again.so")
    assert (tmp_path / "again.so").read_bytes() == library.read_bytes()


def test_the_library_runs_in_a_session(library, whole, lab):
    with lab.connect() as tracker, tracker.request("cpu") as session:
        model = session.load_module(library)
        assert model.kind == "rpcsys.graph"
        assert np.array_equal(model(image()), whole.answer)
        assert model.functions[:2] == ("main", "calls")
        results = [future.result() for future in [model.submit(image()) for _ in range(3)]]
        assert all(np.array_equal(result, whole.answer) for result in results)


TVM = """
import sys
import numpy as np
import tvm
import rpcsys.tvm
model = tvm.runtime.load_module(sys.argv[1])
x = tvm.runtime.tensor(np.load(sys.argv[2]))
np.save(sys.argv[3], model["main"](x).numpy())
"""


def test_the_library_runs_in_tvm(library, whole, tmp_path):
    pytest.importorskip("tvm")
    np.save(tmp_path / "image.npy", image())
    done = subprocess.run(
        [sys.executable, "-c", TVM, library, tmp_path / "image.npy", tmp_path / "out.npy"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "out.npy"), whole.answer)


# ---------------------------------------------------------------- other libraries in sessions


def test_two_native_libraries_in_one_tree_run_in_a_session(lab, tmp_path):
    tree = module.group(
        [Sources([PREPROCESS]), module.library(compiled(FUNCTIONS, tmp_path / "functions.so", "-mavx"))]
    )
    module.export_library(tree, tmp_path / "model.so")
    with lab.connect() as tracker, tracker.request("cpu") as session:
        model = session.load_module(tmp_path / "model.so")
        x = np.arange(64, dtype="f4")
        assert np.array_equal(model["twice"](x, rpcsys.empty(64)), 2 * x)
        assert np.array_equal(model["double_it"](x, rpcsys.empty(64)), 2 * x)
        assert model["add"](3, 4) == 7


def test_a_library_that_the_device_cannot_load_is_not_sent(lab, tmp_path):
    module.export_library(module.python({"main": lambda x: x + 1}), tmp_path / "model.so")
    with lab.connect() as tracker, tracker.request("cpu") as session:
        with pytest.raises(ModelError, match=r"holds rpcsys\.python, which this device cannot load"):
            session.load_module(tmp_path / "model.so")
        assert session.listdir() == []
        session.upload(tmp_path / "model.so")  # the server refuses it as well
        with pytest.raises(ModelError, match=r"model\.so holds Python functions, which can do anything"):
            session.load_module("model.so")


def test_a_device_is_requested_by_the_kinds_that_it_loads(lab):
    with lab.connect() as tracker:
        with tracker.request("cpu", labels={"loads": "rpcsys.onnx"}) as session:
            assert "rpcsys.onnx" in session.info["capabilities"]["kinds"]
        with pytest.raises(UnknownKey):
            tracker.request("cpu", labels={"loads": "rpcsys.python"})


def test_python_functions_load_with_allow_pickle(tmp_path):
    module.export_library(module.python({"main": lambda x: x + 1}), tmp_path / "model.so")
    with Lab({"cpu": 1}, server_args=["--allow-pickle"]) as lab, lab.connect() as tracker:
        with tracker.request("cpu") as session:
            assert session.load_module(tmp_path / "model.so")(41) == 42


BARE = """
import array, json, sys
sys.path.insert(0, sys.argv[1])
import rpcsys
with rpcsys.connect("127.0.0.1", int(sys.argv[2]), key="board") as session:
    model = session.load_module(sys.argv[3])
    picture = memoryview(bytes(range(24))).cast("B", [2, 4, 3])
    x = model(picture)
    refused = ""
    try:
        session.load_module(sys.argv[4])
    except rpcsys.errors.ModelError as error:
        refused = str(error)
    print(json.dumps({"shape": list(x.shape), "kinds": session.info["capabilities"]["kinds"],
                      "files": session.listdir(), "x": [round(v, 4) for v in x.tolist()[0][2][1]], "refused": refused,
                      "foreign": [name for name in ("asyncio", "numpy") if name in sys.modules]}))
"""


def test_the_library_runs_on_a_bare_board(board, tmp_path, whole, lab):  # noqa: F811
    """Server and client have only Python: a graph of native code, weights, and a function of another server."""
    there = module.remote("testing.echo", key="cpu", tracker=lab.tracker_address)
    prepare = module.Stage(
        "prepare", module.library(compiled(PREPROCESS, tmp_path / "p.so")), ["image", "mean"], ["x"], "prepare",
        [("float32", [1, 3, "h", "w"])],
    )  # fmt: skip
    inputs = [{"name": "image", "dtype": "uint8", "shape": ["h", "w", 3]}]
    stages = [prepare, module.Stage("there", there, ["x"], ["y"])]
    root = module.graph(stages, inputs, [{"name": "y"}], params=module.params({"mean": MEAN}))
    module.export_library(root, tmp_path / "model.so")
    module.export_library(module.onnx_module(whole.stages[0].model), tmp_path / "network.so")
    with serving(sys.executable, board, tmp_path) as port:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", BARE, board, str(port), tmp_path / "model.so", tmp_path / "network.so"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    picture = np.arange(24, dtype="u1").reshape(2, 4, 3)
    assert seen["shape"] == [1, 3, 2, 4]
    assert seen["x"] == [round(float(value), 4) for value in prepared(picture)[0, 2, 1]]
    assert seen["kinds"] == ["_lib", "rpcsys.graph", "rpcsys.group", "rpcsys.library", "rpcsys.params", "rpcsys.remote"]
    assert "network.so holds rpcsys.onnx, which this device cannot load; it loads _lib, rpcsys.graph" in seen["refused"]
    assert (seen["files"], seen["foreign"]) == (["model.so"], [])
