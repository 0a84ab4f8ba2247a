"""Libraries that TVM built: the tree decoded from the file is the tree that TVM loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rpcsys import module
from rpcsys.module import container
from rpcsys.module.layout import Record
from tests.device_files import ROOT
from tests.live.artefacts import Artefacts, relax_weights

pytest.importorskip("tvm")

#: Builds a library with a program of Relax that imports two others, one of which imports the other.
BUILD = """
import sys
import numpy as np, tvm
from tvm import relax

def program(operator):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(operator(x, relax.const(np.ones((4, 8), "float32"))))
        builder.emit_func_output(y)
    return tvm.compile(builder.get(), target="llvm")

root, left, right = program(relax.op.multiply), program(relax.op.add), program(relax.op.subtract)
left.mod.clear_imports()  # TVM exports one native module of a tree
right.mod.clear_imports()
left.mod.import_module(right.mod)
root.mod.import_module(right.mod)
root.mod.import_module(left.mod)
root.export_library(sys.argv[1])
"""
#: Prints the tree that TVM loads: for each module, in the order of a walk, its kind, imports and text.
OUTLINE = """
import json, sys
import tvm
from tvm_ffi import get_global_func

def outline(root):
    modules, numbers = [], {}
    def walk(module):
        key = module.__chandle__() if hasattr(module, "__chandle__") else hash(module)
        if key not in numbers:
            numbers[key] = len(modules)
            modules.append(row := [module.kind, [], module["as_text"]() if module.kind.startswith("relax") else ""])
            row[1] += [walk(child) for child in module.imports]
        return numbers[key]
    walk(root)
    return modules

loaded = outline(tvm.runtime.load_module(sys.argv[1]))
decoded = []
for kind, data in json.loads(sys.argv[2]):
    load = get_global_func("ffi.Module.load_from_bytes." + kind)
    decoded.append(load(bytes.fromhex(data))["as_text"]())
print(json.dumps([loaded, decoded]))
"""


def python(code: str, *args: object) -> str:
    """The output of a new process: LLVM's threads and TVM's registries must not enter the tests' process."""
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


#: A function compiled to an object file; it runs in TVM's threads: y = x + 1 over 1024 float32.
OBJECT = """
import sys
import tvm
from tvm import te

x = te.placeholder((1024,), "float32", name="x")
y = te.compute((1024,), lambda i: x[i] + 1.0, name="y")
schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]).with_attr("global_symbol", "addone"))
schedule.parallel(schedule.get_loops(schedule.get_sblock("y"))[0])
tvm.compile(schedule.mod, target="llvm").mod.write_to_file(sys.argv[1])
"""


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nested") / "nested.so"
    python(BUILD, path)
    return path


def walked(records: list[Record]) -> list[int]:
    """The numbers of the modules in the order of a walk from the root."""
    order: list[int] = []

    def walk(number: int) -> None:
        if number not in order:
            order.append(number)
            for child in records[number].imports:
                walk(child)

    walk(0)
    return order


@pytest.mark.slow
@pytest.mark.parametrize("which", ["nested", "relax", "dense"])
def test_the_decoded_tree_is_the_one_that_tvm_loads(which: str, nested: Path, artefacts: Artefacts) -> None:
    path = nested if which == "nested" else getattr(artefacts, which)
    records = container.read(str(path)).records
    order = walked(records)
    inner = [(records[i].kind, bytes(records[i].data or b"").hex()) for i in order if records[i].data is not None]
    loaded, texts = json.loads(python(OUTLINE, path, json.dumps(inner)))
    ours = [
        ("library" if records[i].kind == "_lib" else records[i].kind, [order.index(c) for c in records[i].imports])
        for i in order
    ]
    assert [(kind, imports) for kind, imports, _ in loaded] == ours
    assert [text for _, _, text in loaded if text] == texts
    if which == "nested":
        assert len(set(texts)) == 3


def test_relax_programs_load_and_run(artefacts: Artefacts, nested: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("f4")
    y = module.load_module(artefacts.relax)(x)
    np.testing.assert_allclose(np.asarray(y), np.maximum(x @ relax_weights(), 0), rtol=1e-5)
    assert np.asarray(module.load_module(nested)(x)).tolist() == x.tolist()


def test_an_object_file_of_tvm_in_a_tree_of_rpcsys(tmp_path: Path) -> None:
    """Its pointers into TVM's runtime are set, even though TVM's loader does not load the library."""
    python(OBJECT, tmp_path / "addone.o")
    root = module.group([module.Sources([tmp_path / "addone.o"]), module.params({"w": np.zeros(3)})])
    module.export_library(root, tmp_path / "model.so")
    y = np.zeros(1024, "f4")
    module.load_module(tmp_path / "model.so")["addone"](np.ones(1024, "f4"), y)
    assert y.tolist() == [2.0] * 1024
    code = (
        "import sys; from rpcsys.ffi import library; from rpcsys.module import load_module\n"
        "library.use(sys.argv[2])\ntry: load_module(sys.argv[1])\nexcept Exception as error: print(error)"
    )
    assert "uses TVMBackendParallelLaunch, and this device has no libtvm_runtime" in python(
        code, tmp_path / "model.so", tmp_path
    )
