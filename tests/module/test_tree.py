"""Trees of modules of any shape, saved and loaded again."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import given

from rpcsys.errors import ModelError, UsageError
from rpcsys.module import layout, tree
from rpcsys.module.module import Module, walk
from tests.device_files import ROOT
from tests.module.trees import BytesKind, Holder, blob_of, bytes_kind, loaded, of_shape, outline, shapes

__all__ = ["bytes_kind"]
pytestmark = pytest.mark.usefixtures("bytes_kind")


@given(shapes)
def test_round_trips_and_byte_identical_re_export(shape):
    root = of_shape(shape)
    blob = blob_of(root)
    again = loaded(blob)
    assert outline(again) == outline(root)
    assert blob_of(again) == blob


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [[(b"x", [0])] * 10_000, [(b"", range(9_999)), *[(b"x", [])] * 9_999], [(b"", [0, 1])] * 10_000],
    ids=["deep", "wide", "shared"],
)
def test_ten_thousand_modules(shape):
    root = of_shape(shape)
    started = time.process_time()
    blob = blob_of(root)
    again = loaded(blob)
    assert time.process_time() - started < 5
    assert outline(again) == outline(root)
    assert again.functions == ["size"]
    assert blob_of(again) == blob
    again.close()
    assert {module.released for module in walk(again)} == {1}


def test_a_module_imported_twice_is_one_module():
    shared = Holder(b"shared")
    root = loaded(blob_of(Holder(b"", [Holder(b"left", [shared]), Holder(b"right", [shared, shared])])))
    left, right = root.imports
    assert left.imports[0] is right.imports[0] is right.imports[1]


def test_each_module_is_linked_once_after_its_imports():
    shared = Holder(b"shared")
    root = loaded(blob_of(Holder(b"", [shared, Holder(b"left", [shared])])))
    assert [module.linked for module in walk(root)] == [[True]] * 3


def test_a_circle_cannot_be_saved():
    inner = Holder(b"inner")
    root = Holder(b"", [Holder(b"outer", [inner])])
    inner.attach([root])
    with pytest.raises(UsageError, match="in a circle"):
        tree.save(root)


def test_an_unknown_kind_cannot_be_saved():
    with pytest.raises(UsageError, match=r"saves a module of kind 'acme\.x'; known are _lib, rpcsys"):
        tree.save(Holder(b"", [Module("acme.x")]))


def test_an_unknown_kind_cannot_be_loaded():
    blob = b"".join(layout.encode([("acme.x", ())], lambda index, offset: [b""]))
    with pytest.raises(
        ModelError, match=r"^ModelError: model\.so holds a module of kind 'acme\.x', which nothing here"
    ):
        loaded(blob)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("a\nb"), r"model\.so cannot be loaded: its module of kind 'testing\.bytes' says: a b"),
        (KeyError(), r"says: KeyError"),
        (layout.FormatError("is broken"), r"ModelError: model\.so is broken"),
    ],
)
@pytest.mark.parametrize("where", ["load_from_bytes", "link"])
def test_an_error_while_loading_closes_all_modules(monkeypatch, error, message, where):
    made = []

    class Picky(Holder):
        def __init__(self, data):
            super().__init__(data)
            made.append(self)
            if where == "load_from_bytes":
                self.link()

        def link(self):
            if bytes(self.data) == b"bad":
                raise error

    monkeypatch.setattr(BytesKind, "load_from_bytes", lambda self, data, context: Picky(data))
    blob = blob_of(Holder(b"", [Holder(b"good"), Holder(b"bad"), Holder(b"other")]))
    with pytest.raises(ModelError, match=message) as caught:
        loaded(blob)
    assert "\n" not in str(caught.value)
    whole = [module for module in made if bytes(module.data) != b"bad"]
    assert [module.released for module in whole] == [1] * len(whole)


WITHOUT = """
import sys
for name in ("onnxruntime", "numpy"):
    sys.modules[name] = None
from rpcsys.module import layout, tree
from rpcsys.module.registry import Context
blob = b"".join(layout.encode([("rpcsys.onnx", ())], lambda index, offset: [b""]))
try:
    tree.load(layout.decode(memoryview(blob)), Context("model.so", None))
except Exception as error:
    print(type(error).__name__, error.args[0])
"""


def test_the_error_for_a_kind_names_its_missing_packages():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith(
        "ModelError model.so holds a module of kind 'rpcsys.onnx', which needs numpy and onnxruntime here (import of "
    ), done.stderr
    assert done.stdout.endswith("package onnxruntime is not on the board: python3 -m pip install onnxruntime there\n")
