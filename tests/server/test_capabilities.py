"""A device's capabilities are the packages that can be imported there. Finding them imports none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

from rpcsys.server import capabilities
from rpcsys.stream import SPEEDUPS
from rpcsys.wire.labels import VERSIONS
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
    assert said["speedups"] is SPEEDUPS


@pytest.mark.parametrize("missing", ["numpy", "onnxruntime"])
def test_models_need_both_packages(missing):
    said = ask(sys.executable, missing)
    assert said[missing] is False
    assert (".onnx" in said["loads"]) == (".xml" in said["loads"])  # OpenVINO reads both


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


@pytest.mark.parametrize("version", pythons())
def test_versions_are_found_by_every_python_without_an_import(version):
    said = ask(pythons()[version], flags=("-I", "-S"))["versions"]
    assert said["python"].startswith(version)
    assert said["kernel"] == os.uname().release
    assert not {"numpy", "onnxruntime", "tvm"} & said.keys()
    here = ask(sys.executable)["versions"]
    assert [here[name] for name in ("numpy", "onnxruntime")] == [np.__version__, metadata.version("onnxruntime")]
    assert list(here) == [name for name in VERSIONS if name in here]


def test_a_hidden_package_has_no_version():
    assert "numpy" not in ask(sys.executable, "numpy")["versions"]


def test_texts_that_are_no_label_are_left_out(monkeypatch):
    found = {"kernel": "6.1\n", "libc": "", "driver": "5" * 65, "python": "5" * 64}
    monkeypatch.setattr(capabilities.detected, "of_board", lambda: found)
    assert capabilities.versions().keys() & found.keys() == {"python"}


def test_every_server_has_labels_with_the_versions_that_are_found():
    found = capabilities.labels("desk-7", {})
    assert list(found) == ["name", "arch", "system", "cores", "memory_mb", *capabilities.versions()]
    assert (found["name"], found["arch"]) == ("desk-7", os.uname().machine)
    assert int(found["cores"]) == len(os.sched_getaffinity(0))
    assert int(found["memory_mb"]) == capabilities.memory() >> 20
    assert found["python"] == capabilities.versions()["python"]
    assert all(value.isprintable() and 0 < len(value) <= 64 for value in found.values())


def test_the_keepers_labels_win_and_versions_come_last():
    given = {"shelf": "3", "python": "3.99", "driver": ""}
    found = capabilities.labels("desk-7", given)
    assert {label: found[label] for label in given} == given
    assert list(found)[5:8] == list(given)
    assert set(found) == {*capabilities.labels("desk-7", {}), *given}


def test_machine_describes_this_board():
    said = capabilities.machine()
    assert said["arch"] == os.uname().machine
    assert said["cores"] == len(os.sched_getaffinity(0))
    assert said["memory"] > 1 << 28
    assert json.loads(json.dumps(said)) == said
