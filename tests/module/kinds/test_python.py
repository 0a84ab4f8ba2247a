"""Python functions in a tree: loaded only where that is allowed."""

from __future__ import annotations

import threading

import pytest

from rpcsys.errors import ModelError, UsageError
from rpcsys.module import layout, python, tree
from rpcsys.module.registry import Context
from tests.module.trees import blob_of, loaded


def allowed(blob):
    return tree.load(layout.decode(memoryview(blob)), Context("model.so", lambda: None, allow_pickle=True))


def made():
    offset = 10
    return python({"main": lambda x: x + offset, "name": lambda: "python"})


def test_refused_unless_allowed():
    with pytest.raises(
        ModelError, match=r"model.so holds Python functions, which can do anything; .*allow_pickle=True"
    ):
        loaded(blob_of(made()))


def test_round_trip():
    blob = blob_of(made())
    module = allowed(blob)
    assert (module(5), module["name"]()) == (15, "python")
    assert blob_of(module) == blob


def test_nothing_runs_before_it_is_allowed(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

        def __call__(self):
            return None

    blob = blob_of(python({"main": Trap()}))
    with pytest.raises(ModelError):
        loaded(blob)
    assert list(tmp_path.iterdir()) == []


def test_functions_of_another_python_are_refused():
    blob = blob_of(made())
    at = blob.index(b'"python":"') + 10
    with pytest.raises(ModelError, match=r"functions of Python 9\.\d+, and this is Python 3"):
        allowed(blob[:at] + b"9" + blob[at + 1 :])


def test_a_function_that_cannot_be_pickled_is_an_error():
    lock = threading.Lock()
    with pytest.raises(UsageError, match="main cannot be saved: cannot pickle"):
        tree.save(python({"main": lambda: lock}))


@pytest.mark.parametrize(
    ("old", "new"), [(b'["main","name"]', b'["main","nome"]'), (b'["main","name"]', b'{"a":1,   "b":2}')]
)
def test_descriptions_that_do_not_match_are_refused(old, new):
    with pytest.raises(ModelError, match=r"is broken|is cut off"):
        allowed(blob_of(made()).replace(old, new))
