"""What a canary runs."""

from __future__ import annotations

import pytest

from rpcsys.errors import ModelError
from rpcsys.module.module import Module, process
from rpcsys.server.canary import workload


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    monkeypatch.setattr(process, "threads", None)


def test_the_built_in_work_needs_the_standard_library_alone():
    run, name = workload.builtin()
    run()
    assert name.startswith("builtin/1 cpython-3.")
    assert "zlib-" in name


def test_a_board_without_zlib_has_another_name(monkeypatch):
    monkeypatch.setattr(workload, "installed", lambda package: False)
    run, name = workload.builtin()
    run()
    assert "zlib" not in name


def test_a_model_is_called_with_random_inputs(monkeypatch, tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"content")
    seen = []
    inputs = [{"name": "x", "dtype": "float32", "shape": ["batch", 3]}, {"name": "n", "dtype": "int64", "shape": []}]
    module = Module("rpcsys.onnx", {"main": lambda *args: seen.append(args)}, inputs=inputs, outputs=[])
    monkeypatch.setattr(workload.loading, "load_file", lambda path, name: module)
    run, name = workload.of_file(str(file))
    run()
    (args,) = seen
    assert (args[0].shape, args[0].dtype.name) == ((1, 3), "float32")
    assert args[1].dtype.name == "int64"
    assert name.startswith("model.onnx ed7002b439e9")
    assert process.threads == 1


def test_a_real_model(tmp_path):
    pytest.importorskip("onnxruntime")
    from tests.live import deployed

    run, name = workload.of_file(str(deployed.onnx_model(tmp_path / "scale.onnx", 2.0)))
    run()
    assert "onnxruntime-" in name


def test_a_library_has_a_function_of_no_arguments(monkeypatch, tmp_path):
    file = tmp_path / "some.so"
    file.write_bytes(b"")
    module = Module("native", {"canary": lambda: 7, "main": lambda: 8})
    monkeypatch.setattr(workload.loading, "load_file", lambda path, name: module)
    run, _ = workload.of_file(str(file))
    assert run() == 7


def test_what_cannot_be_called_is_refused(monkeypatch, tmp_path):
    file = tmp_path / "some.so"
    file.write_bytes(b"")
    monkeypatch.setattr(workload.loading, "load_file", lambda path, name: Module("native", {"add": lambda: 7}))
    with pytest.raises(ModelError, match=r"some\.so has the functions add: a canary is"):
        workload.of_file(str(file))


def test_other_content_has_another_name(tmp_path, monkeypatch):
    monkeypatch.setattr(workload.loading, "load_file", lambda path, name: Module("native", {"canary": lambda: 7}))
    names = set()
    for content in (b"one", b"two"):
        (tmp_path / "some.so").write_bytes(content)
        names.add(workload.of_file(str(tmp_path / "some.so"))[1])
    assert len(names) == 2
    assert all(len(name) <= 200 for name in names)
