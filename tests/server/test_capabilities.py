"""A device's capabilities are the packages that can be imported there. Finding them imports none."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rpcsys.server import capabilities
from tests.device_files import ROOT
from tests.pythons import pythons

ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    sys.modules[name] = None
from rpcsys.server import capabilities
said = capabilities.capabilities()
print(json.dumps([said, sorted({"numpy", "onnxruntime", "onnx", "tvm"} & {n for n in sys.modules if sys.modules[n]})]))
"""


def ask(python, *hidden, flags=()):
    done = subprocess.run(
        [python, *flags, "-c", ASK, str(ROOT), *hidden], capture_output=True, text=True, timeout=60, check=True
    )
    said, imported = json.loads(done.stdout)
    assert imported == []
    return said


def test_capabilities_of_this_machine():
    said = ask(sys.executable)
    assert said["numpy"]
    assert said["onnxruntime"]
    assert ".onnx" in said["loads"]
    assert said["python"] == "{}.{}".format(*sys.version_info[:2])
    assert said["pickle"] is False


@pytest.mark.parametrize("missing", ["numpy", "onnxruntime"])
def test_models_need_both_packages(missing):
    said = ask(sys.executable, missing)
    assert said[missing] is False
    assert ".onnx" not in said["loads"]


@pytest.mark.parametrize("version", pythons())
def test_a_python_without_packages_has_no_numpy(version):
    said = ask(pythons()[version], flags=("-I", "-S"))
    assert (said["numpy"], said["python"]) == (False, version)


def test_a_loaded_package_is_installed_even_without_a_spec(monkeypatch):
    monkeypatch.setitem(sys.modules, "half", type(sys)("half"))
    assert capabilities.installed("half")
    sys.modules["half"].__spec__ = None
    assert capabilities.installed("half")
    assert not capabilities.installed("none.at.all")


def test_machine_describes_this_board():
    said = capabilities.machine()
    assert said["arch"] == os.uname().machine
    assert said["cores"] == len(os.sched_getaffinity(0))
    assert said["memory"] > 1 << 28
    assert json.loads(json.dumps(said)) == said
