"""Which file is loaded by what, and what is said where it cannot be."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rpcsys.errors import ModelError
from rpcsys.module import loading
from tests.device_files import ROOT


@pytest.mark.parametrize("name", ["model.tflite", "model", "model.onnx.txt", "model.ONNX"])
def test_files_of_no_known_kind(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(
        ModelError, match=r"no loader for this kind of file; known are \.onnx, \.so"
    ) as caught:
        loading.load_file(str(tmp_path / name), name)
    assert str(caught.value).startswith(f"ModelError: {name}: ")


@pytest.mark.parametrize("suffix", loading.SUFFIXES)
def test_files_that_are_empty_or_nonsense(tmp_path, suffix):
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
sys.modules[sys.argv[1]] = None
from rpcsys.module import loading
try:
    loading.load_file("/nowhere/model.onnx", "model.onnx")
except Exception as error:
    print(type(error).__name__, error.args[0])
"""


@pytest.mark.parametrize("missing", ["onnxruntime", "numpy"])
def test_a_package_that_is_missing(missing):
    done = subprocess.run([sys.executable, "-c", WITHOUT, missing], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("ModelError model.onnx needs onnxruntime on the device"), done.stderr
    assert done.stdout.rstrip().endswith("pip install onnxruntime there")


def test_loading_imports_nothing_before_it_is_needed():
    code = "import sys, rpcsys.module.loading; print({'numpy', 'onnxruntime', 'ctypes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr
