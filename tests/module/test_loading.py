"""The loader of each kind of file, and the errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rpcsys import module
from rpcsys.errors import ModelError, UsageError
from rpcsys.module import elf, elfwriter, layout, loading, onnx_module, registry, tree
from rpcsys.module.module import Module, walk
from rpcsys.module.registry import Context
from tests.device_files import ROOT
from tests.live import deployed
from tests.module import libraries
from tests.module.trees import blob_of
from tests.native import FUNCTIONS, compiled


@pytest.mark.parametrize("name", ["model.h5", "model", "model.onnx.txt", "model.ONNX"])
def test_files_of_unknown_kinds_are_refused(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"no loader for this kind of file; known are \.onnx, .*\.so") as caught:
        loading.load_file(str(tmp_path / name), name)
    assert str(caught.value).startswith(f"ModelError: {name}: ")


@pytest.mark.parametrize("suffix", loading.SUFFIXES)
def test_empty_and_random_files_are_refused(tmp_path, suffix):
    for content in (b"", b"nonsense", b"\x7fELF" + b"\0" * 100, b"\x08\xff" * 50):
        path = tmp_path / f"model{suffix}"
        path.write_bytes(content)
        with pytest.raises(ModelError) as caught:
            loading.load_file(str(path), f"model{suffix}")
        assert "\n" not in str(caught.value)
        assert f"model{suffix}" in str(caught.value)
        assert str(tmp_path) not in str(caught.value)


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
from rpcsys.module import loading
try:
    loading.load_file("/nowhere/" + sys.argv[2], sys.argv[2])
except Exception as error:
    print(type(error).__name__, error.args[0])
"""


@pytest.mark.parametrize(
    ("name", "missing", "package"),
    [
        ("model.onnx", "onnxruntime,openvino", "onnxruntime"),
        ("model.onnx", "numpy", "onnxruntime"),
        ("model.tflite", "ai_edge_litert", "ai-edge-litert"),
        ("model.xml", "openvino", "openvino"),
        ("model.vmfb", "iree.runtime", "iree-base-runtime"),
        ("model.pte", "executorch,torch", "executorch"),
    ],
)
def test_the_error_names_a_missing_package(name, missing, package):
    done = subprocess.run([sys.executable, "-c", WITHOUT, missing, name], capture_output=True, text=True, cwd=ROOT)
    how = f"package {package} is not on the board: python3 -m pip install {package} there"
    assert done.stdout.startswith(f"ModelError {name} cannot be loaded: {how} ("), done.stderr
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("name", ["functions.so", "libc.so", "./functions.so"])
def test_a_library_is_loaded_by_its_bare_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(compiled(FUNCTIONS, tmp_path / name, "-mavx").parent)
    for loaded in (module.load_module(name), loading.load_file(name, "f"), loading.load_library(name, "f")):
        assert loaded["add"](1, 2) == 3


def test_a_tree_loaded_by_its_bare_name_works_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compiled(FUNCTIONS, tmp_path / "inner.so", "-mavx")
    source = shutil.copy(FUNCTIONS, tmp_path / "own.c")
    module.export_library(module.group([module.Sources([source], ["-mavx"]), module.library("inner.so")]), "tree.so")
    tree = module.load_module("tree.so")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert [each["add"](1, 2) for each in tree.imports] == [3, 3]


def test_loading_imports_nothing_before_it_is_needed():
    code = "import sys, rpcsys.module.loading; print({'numpy', 'onnxruntime', 'ctypes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr


def test_a_tree_of_every_kind_without_code_comes_back_to_the_same_file(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(np.arange(100_000, dtype="f4"), "w")
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [100_000]) for name in ("x", "y")]
    add = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    network = helper.make_model(add, ir_version=10)
    shared = module.params({**module.weights_of(network), "scale": np.ones(3)})
    stage = module.onnx_module(network, params=shared)
    graph = module.graph([module.Stage("add", stage, ["x"], ["y"])], [{"name": "x"}], [{"name": "y"}])
    library = module.library(compiled(FUNCTIONS, tmp_path / "functions.so", "-mavx"))
    there = module.remote("f", address="127.0.0.1:1")
    root = module.group([graph, library, there, shared, module.python({"f": print})])
    module.export_library(root, tmp_path / "model.so")
    with module.load_module(tmp_path / "model.so", allow_pickle=True) as again:
        x = np.ones(100_000, "f4")
        assert again(x)[-1] == 100_000
        assert again["add"](1, 2) == 3
        module.export_library(again, tmp_path / "again.so")
    assert (tmp_path / "again.so").read_bytes() == (tmp_path / "model.so").read_bytes()


def older_file(folder: Path, *parts: tuple[str, bytes]) -> Path:
    path = folder / "model.so"
    path.write_bytes(libraries.library(libraries.older(*parts), elf.here(), "__tvm_dev_mblob"))
    return path


def of_kinds(root: Module) -> list[tuple[str, bytes]]:
    """The parts of the older layout for a tree: each module of ours writes one string."""
    modules = list(walk(root))
    parts = [
        (each.kind, libraries.string(b"".join(registry.find(each.kind).save_to_bytes(each, 0)))) for each in modules
    ]
    rows, children = [0], []
    for each in modules:
        children += [modules.index(child) for child in each.imports]
        rows.append(len(children))
    return [*parts, ("_import_tree", libraries.vector(*rows) + libraries.vector(*children))]


def test_a_library_in_the_older_layout_is_loaded_where_its_kinds_are_known(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(np.arange(1000, dtype="f4"), "w")
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1000]) for name in ("x", "y")]
    add = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    network = helper.make_model(add, ir_version=10)
    shared = module.params({**module.weights_of(network), "scale": np.ones(3)})
    stage = module.onnx_module(network, params=shared)
    graph = module.graph([module.Stage("add", stage, ["x"], ["y"])], [{"name": "x"}], [{"name": "y"}])
    library = module.library(compiled(FUNCTIONS, tmp_path / "functions.so"))
    path = older_file(tmp_path, *of_kinds(module.group([graph, library, shared])))
    assert module.inspect(path).layout == "tvm"
    with module.load_module(path) as again:
        assert (again(np.ones(1000, "f4")) == np.arange(1000) + 1).all()
        assert again["add"](1, 2) == 3
        assert list(again["get_param"]("scale")) == [1, 1, 1]


def test_without_an_import_tree_the_older_library_imports_its_modules(tmp_path):
    (part, _) = of_kinds(module.params({"w": np.ones(3)}))
    with module.load_module(older_file(tmp_path, part)) as again:
        assert (again.kind, list(again["get_param"]("w"))) == ("_lib", [1, 1, 1])


@pytest.mark.parametrize("kind", libraries.OLDER_KINDS)
def test_an_unknown_kind_in_the_older_layout_is_refused_by_name(tmp_path, kind):
    (part, _) = of_kinds(module.params({"w": np.ones(3)}))
    path = older_file(tmp_path, (kind, libraries.OLDER_KINDS[kind]), part)
    words = rf"model\.so is in the layout that TVM had before tvm-ffi, and holds a module of kind '{kind}', which"
    with pytest.raises(
        ModelError, match=rf"{words} nothing here can load; known are _lib, .*; compile it again"
    ) as why:
        module.load_module(path)
    assert "\n" not in str(why.value)


def test_functions_of_an_older_calling_convention_are_refused_by_name(tmp_path):
    body = ", ".join(str(byte) for byte in libraries.older(("_lib", b""), ("_import_tree", TREE_OF_ONE)))
    convention = "void *values, int *codes, int count, void *result, int *code, void *resource"
    source = tmp_path / "f.c"
    source.write_text(
        f"const unsigned char __tvm_dev_mblob[] = {{{body}}};\nint fused_add({convention}) {{ return 0; }}\n"
    )
    path = compiled(source, tmp_path / "model.so")
    with pytest.raises(ModelError, match=r"its functions have the calling convention of that time \(fused_add\); comp"):
        module.load_module(path)


TREE_OF_ONE = libraries.vector(0, 0) + libraries.vector()


@pytest.mark.parametrize("damage", ["cut", "circle", "machine"])
def test_a_broken_older_library_is_one_line(tmp_path, damage):
    (part, tree) = of_kinds(module.params({"w": np.ones(3)}))
    if damage == "circle":
        tree = ("_import_tree", libraries.vector(0, 1) + libraries.vector(0))
    path = older_file(tmp_path, part, tree)
    content = path.read_bytes()
    if damage == "machine":
        other = next(machine for machine in elfwriter.MACHINES if machine != elf.here())
        content = libraries.library(libraries.older(part), other, "__tvm_dev_mblob")
    path.write_bytes(content[:-9] if damage == "cut" else content)
    words = {"cut": "cut off", "circle": "in a circle", "machine": "compile it for this device"}
    with pytest.raises(ModelError, match=rf"model\.so .*{words[damage]}") as why:
        module.load_module(path)
    assert "\n" not in str(why.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UsageError, match=r"model\.so: there is no such file"):
        module.load_module(tmp_path / "model.so")


def test_a_library_through_a_link_and_a_name_of_its_own(tmp_path):
    """onnxruntime opens the file itself, and follows no link out of the given folder."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(np.arange(1000, dtype="f4"), "w")
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1000]) for name in ("x", "y")]
    add = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    folder = tmp_path / "models é"
    folder.mkdir()
    module.export_library(module.onnx_module(helper.make_model(add, ir_version=10)), folder / "näme 1.so")
    (tmp_path / "link.so").symlink_to(folder / "näme 1.so")
    for path in (tmp_path / "link.so", folder / "näme 1.so"):
        assert module.load_module(path)(np.ones(1000, "f4"))[-1] == 1000


def threads_of(model: Module) -> int:
    """The threads of a call, as onnxruntime has them."""
    found: int = model._ready()._session.get_session_options().intra_op_num_threads
    return found


@pytest.mark.parametrize("threads", [1, 3])
def test_an_onnx_model_takes_a_number_of_threads(tmp_path, threads):
    path = deployed.onnx_model(tmp_path / "scale.onnx", 3)
    with loading.load_module(path, threads=threads) as model:
        assert threads_of(model) == threads
        assert model(np.ones(4, "f4")).tolist() == [3] * 4


def test_each_onnx_model_of_a_library_takes_it_and_other_modules_are_left_alone(tmp_path):
    onnx = [onnx_module(deployed.onnx_model(tmp_path / f"{by}.onnx", by), threads=2) for by in (3, 5)]
    root = module.group([*onnx, module.params({"w": np.ones(2)})])
    for threads, expected in ((0, 2), (1, 1)):
        context = Context("model.so", lambda: None, threads=threads)
        made = tree.load(layout.decode(memoryview(blob_of(root))), context)
        assert [threads_of(each) for each in made.imports[:2]] == [expected] * 2
        assert made.imports[1].model.options["threads"] == expected


def test_what_has_no_threads_is_refused_in_one_line(tmp_path):
    native = compiled(FUNCTIONS, tmp_path / "native.so")
    with pytest.raises(ModelError, match=r"native\.so has no number of threads to set: .*leave the threads out"):
        loading.load_file(str(native), "native.so", threads=2)
    reference = onnx_module(deployed.onnx_model(tmp_path / "scale.onnx", 3), runtime="reference")
    for root in (reference, module.group([module.params({"w": np.ones(2)})])):
        with pytest.raises(ModelError, match=r"model\.so has no number of threads"):
            tree.load(layout.decode(memoryview(blob_of(root))), Context("model.so", lambda: None, threads=2))


@pytest.mark.parametrize("threads", [-1, 5000, 1.0, True, "2"])
def test_threads_are_a_whole_number(threads):
    with pytest.raises(UsageError, match="a call has 1 to 1024 threads"):
        loading.load_file("m.onnx", "m.onnx", threads=threads)
