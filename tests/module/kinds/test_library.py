"""Native libraries inside a library: loaded from memory, several in one tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rpcsys.errors import ModelError, NativeError, RemoteFunctionError, UsageError
from rpcsys.module import Stage, graph, group, layout, library, params, python, tree
from rpcsys.module.kinds import library as kind
from rpcsys.module.registry import Context
from tests.live.artefacts import relax_weights
from tests.module.trees import blob_of, loaded
from tests.native import FUNCTIONS, bare, compiled, lay_out

PREPROCESS = Path(__file__).with_name("preprocess.c")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two libraries that do not use each other's functions."""
    folder = tmp_path_factory.mktemp("native")
    return compiled(PREPROCESS, folder / "preprocess.so"), compiled(FUNCTIONS, folder / "functions.so", "-mavx")


def test_two_native_libraries_in_one_tree(two):
    blob = blob_of(group([library(path) for path in two]))
    root = loaded(blob)
    x, y = np.ones(40, "f4"), np.zeros(40, "f4")
    root["twice"](x, y)
    assert y.tolist() == [2] * 40
    assert root["add"](3, 4) == 7
    assert root.functions == ["calls", "prepare", "twice", "add", "describe", "double_it", "offset", "silent", "type"]
    assert blob_of(root) == blob


def test_the_same_bytes_are_one_library(two):
    blob = blob_of(library(two[0]))
    before = len(os.listdir("/proc/self/fd"))
    first, second = loaded(blob), loaded(blob)
    times = first["calls"]()
    assert second["calls"]() == times + 1
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_libraries_with_the_same_functions_stay_separate(two, tmp_path):
    source = tmp_path / "other.c"
    source.write_text(PREPROCESS.read_text().replace("2 * from[i]", "3 * from[i]"))
    root = loaded(blob_of(group([library(two[0]), library(compiled(source, tmp_path / "other.so"))])))
    results = []
    for module in root.imports:
        y = np.zeros(3, "f4")
        module["twice"](np.ones(3, "f4"), y)
        results.append(y[0])
    assert results == [2, 3]


def test_its_description(two):
    module = library(two[0], target="x86_64-linux-gnu", name="pre")
    assert (module.name, module.target, module.bits) == ("pre", "x86_64-linux-gnu", 64)
    assert module.describe()["functions"] == ["calls", "prepare", "twice"]
    with pytest.raises(RemoteFunctionError, match="it has calls, prepare, twice"):
        module["add"]


def test_errors_of_native_code(two):
    with pytest.raises(NativeError):
        loaded(blob_of(library(two[0])))["twice"](1)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is not an ELF"), (b"\x7fELF", "has a broken ELF header"), (b"MZ" * 40, "is not an ELF shared library")],
)
def test_a_file_that_is_no_library_is_refused(tmp_path, content, message):
    path = tmp_path / "bad.so"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"bad.so {message}"):
        library(path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        library(tmp_path / "nowhere.so")


def foreign():
    """A library of another architecture; its header alone is looked at."""
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    if compiler is None:
        pytest.skip("there is no compiler for aarch64 here")
    return compiler


def test_a_library_for_another_machine(tmp_path):
    path = tmp_path / "board.so"
    subprocess.run([foreign(), "-shared", "-fPIC", "-w", "-nostdlib", "-o", path, PREPROCESS], check=True)
    module = library(path, target="aarch64-linux-gnu")
    blob = blob_of(group([module]))
    with pytest.raises(
        ModelError, match=r"board.so is built for aarch64-linux-gnu \(aarch64, 64 bits\), and this device is x86_64 "
    ):
        loaded(blob)


def test_damaged_bytes_are_an_error(two):
    blob = blob_of(library(two[0]))
    with pytest.raises(ModelError, match="is broken"):
        loaded(blob.replace(b'"bits":64', b'"bits":"x'))
    with pytest.raises(ModelError, match=r"preprocess\.so"):
        loaded(blob.replace(b"\x7fELF", b"\x7fELG"))


def test_a_system_without_memory_files(two, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(kind, "_loaded", {})
    with pytest.raises(ModelError, match="cannot load a library from memory"):
        loaded(blob_of(library(two[0])))


BARE = """
import array, sys
from rpcsys.module import layout, tree
from rpcsys.module.registry import Context
root = tree.load(layout.decode(memoryview(open(sys.argv[1], "rb").read())), Context("model.so", None))
x, y = array.array("f", [1, 2, 3]), array.array("f", [0, 0, 0])
root["twice"](x, y)
print(y.tolist(), root["add"](1, 2))
"""


def test_two_libraries_on_a_bare_board(two, tmp_path):
    (tmp_path / "tree").write_bytes(blob_of(group([library(path) for path in two])))
    assert bare(lay_out(tmp_path / "board"), BARE, tmp_path / "tree") == "[2.0, 4.0, 6.0] 3\n"


@pytest.mark.slow
def test_two_relax_programs_in_one_tree(artefacts):
    """Each has TVM's own modules inside; what TVM compiled on its own needs TVM's pointers, and gets them."""
    programs = [library(path, functions=["main"]) for path in (artefacts.relax, artefacts.dense)]
    assert [program.kinds for program in programs] == [["relax.VMExecutable"]] * 2
    stages = [
        Stage("first", programs[0], ["x"], ["h"]),
        Stage("wide", of_rows(), ["h"], ["wide"], "widen"),
        Stage("second", programs[1], ["wide", "w"], ["product", "y"]),
    ]
    w = np.eye(8, dtype="f4") * 3
    root = graph(stages, [{"name": "x"}], [{"name": "y"}], params=params({"w": w}))
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("f4")
    wanted = np.maximum(np.maximum(x @ relax_weights(), 0) @ w, 0)
    again = allowed(blob_of(root))
    assert np.allclose(again(x), wanted, atol=1e-5)
    assert again.imports[0].run({"x": x})["output"].shape == (4, 8)


def of_rows():
    return python({"widen": np.ascontiguousarray})


def allowed(blob):
    return tree.load(layout.decode(memoryview(blob)), Context("model.so", lambda: None, allow_pickle=True))


def test_a_relax_program_without_tvms_runtime_is_refused(artefacts, monkeypatch):
    from rpcsys.ffi import library as libraries

    monkeypatch.setattr(libraries, "has_runtime", lambda: False)
    monkeypatch.setattr(kind, "_loaded", {})
    with pytest.raises(ModelError, match=r"relax\.so has modules inside, and this device has no libtvm_runtime"):
        loaded(blob_of(library(artefacts.relax)))
