"""One library with a tree of modules for boards with other processors: built here, loaded there, also in a session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys import module
from rpcsys.lab import Lab
from rpcsys.module import toolchain
from rpcsys.module.kinds.graph import Stage
from tests.live.daemons import Daemon, Daemons
from tests.live.emulated import MACHINES, Machine
from tests.native import FUNCTIONS, bare, compiled, lay_out
from tests.test_device_tier import SERVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "board"
LENGTH = 1 << 16
ROW = {"dtype": "float32", "shape": ["n"]}
SCALE = """
#include "{functions}"
/* scale(x, w, y): y = w[0] x. */
int __tvm_ffi_scale(void *self, const Any *args, int32_t count, Any *result) {{
  Tensor *x = tensor(args), *w = tensor(args + 1), *y = tensor(args + 2);
  for (int64_t i = 0; i < x->shape[0]; i++) ((float *)y->data)[i] = ((float *)w->data)[0] * ((float *)x->data)[i];
  return 0;
}}
"""
#: Loads a model, runs it, and prints its output, its functions and a part of its weights.
RUN = """
import array, json, platform
from rpcsys.module import load_module
model = load_module(sys.argv[1])
y = model(array.array("f", range(64)))
weights = model["get_param"]("large")
print(json.dumps({
    "y": memoryview(y.data).cast("B").cast("f").tolist(),
    "functions": model.functions,
    "last": memoryview(weights.data).cast("B").cast("f")[-1],
    "readonly": memoryview(weights.data).readonly,
}))
"""


@pytest.fixture(scope="module", params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("board"))


@pytest.fixture(scope="module")
def edge() -> Iterator[Lab]:
    """A server on this machine that the boards call."""
    with Lab(servers={"edge": 1}) as lab:
        yield lab


@pytest.fixture(scope="module")
def model(machine: Machine, edge: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``y = 3 (2 x)``: a function of the library, one of a library inside it, one on a server, and weights."""
    folder = tmp_path_factory.mktemp("model")
    tracker = "{}:{}".format(*edge.tracker_address)
    (folder / "scale.c").write_text(SCALE.format(functions=FUNCTIONS))
    compiler = toolchain.find(machine.triple).command()
    inner = compiled(folder / "scale.c", folder / "scale.so", compiler=compiler)
    weights = module.params({"by": np.array([3], "f4"), "large": np.arange(LENGTH, dtype="f4")})
    makes = [("float32", ["n"])]
    stages = [
        Stage("twice", module.Sources([FUNCTIONS]), ["x"], ["twice"], "double_it", makes),
        Stage("scale", module.library(inner, target=machine.triple), ["twice", "by"], ["six"], "scale", makes),
        Stage("head", module.remote("testing.echo", key="edge", tracker=tracker), ["six"], ["y"]),
    ]
    root = module.graph(stages, [{"name": "x", **ROW}], [{"name": "y", **ROW}], params=weights)
    module.export_library(root, folder / "model.so", toolchain=machine.triple)
    return folder / "model.so"


def test_the_library_runs_on_the_board(machine: Machine, board: Path, model: Path) -> None:
    seen = json.loads(bare(board, RUN, model, python=str(machine.python)))
    assert seen["y"] == [6.0 * value for value in range(64)]
    assert {"main", "double_it", "scale", "get_param"} <= set(seen["functions"])
    assert (seen["last"], seen["readonly"]) == (LENGTH - 1, True)


def test_a_session_runs_the_library(
    machine: Machine, board: Path, model: Path, module_daemons: Callable[[], Daemons]
) -> None:
    command = [str(machine.python), "-I", "-S", "-c", SERVE, str(board), "--host", "127.0.0.1", "--port", "0"]
    server: Daemon = module_daemons().launch("board", [*command, "--key", KEY])
    server.await_ready_line()
    with rpcsys.connect(*server.address, key=KEY) as session:
        remote = session.load_module(model)
        x = np.arange(96, dtype="f4")
        np.testing.assert_array_equal(remote(x), 6 * x)
        np.testing.assert_array_equal(remote.run({"x": x})["y"], 6 * x)


def test_the_library_is_inspected_here(machine: Machine, model: Path) -> None:
    seen = module.inspect(model)
    arch = {"arm": "arm (32 bits)", "riscv64": "riscv (64 bits)"}.get(machine.qemu, "aarch64 (64 bits)")
    assert seen.target == arch
    kinds = ["rpcsys.graph", "_lib", "rpcsys.library", "rpcsys.remote", "rpcsys.params"]
    assert [each.kind for each in seen.modules] == kinds
    assert "double_it" in seen.modules[1].functions
    assert "scale" in seen.modules[2].functions
    assert seen.modules[2].target == arch


def test_a_library_for_another_machine_is_refused_on_the_board(machine: Machine, board: Path, tmp_path: Path) -> None:
    module.export_library(module.params({"w": np.zeros(3)}), tmp_path / "desk.so")
    code = "from rpcsys.module import load_module\ntry: load_module(sys.argv[1])\nexcept Exception as e: print(e)"
    said = bare(board, code, tmp_path / "desk.so", python=str(machine.python))
    assert "desk.so is built for x86_64 (64 bits), and this device is" in said


def test_the_boards_loader_opens_a_library_made_without_linker(machine: Machine, board: Path, tmp_path: Path) -> None:
    weights = module.params({"w": np.arange(LENGTH, dtype="f4")})
    module.export_library(weights, tmp_path / "weights.so", toolchain=machine.triple)
    code = "from rpcsys.module import load_module\nprint(load_module(sys.argv[1])['get_param']('w').shape)"
    assert bare(board, code, tmp_path / "weights.so", python=str(machine.python)).strip() == f"({LENGTH},)"
    opener = "import ctypes; library = ctypes.CDLL(sys.argv[1]); "
    opener += "print(ctypes.c_uint64.in_dll(library, '__tvm_ffi__library_bin').value)"
    size = (tmp_path / "weights.so").stat().st_size
    seen = int(bare(board, opener, tmp_path / "weights.so", python=str(machine.python)))
    assert seen == size - 4096 - 8
