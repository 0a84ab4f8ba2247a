"""A graph from its JSON, its library and its weights, each in a file of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rpcsys import graph, module
from rpcsys.errors import UsageError
from tests.native import compiled

SOURCE = Path(__file__).parents[2] / "module" / "kinds" / "preprocess.c"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    native = module.library(compiled(SOURCE, tmp_path_factory.mktemp("native") / "preprocess.so"))
    stage = module.Stage("prepare", native, ["image", "mean"], ["x"], "prepare", [("float32", [1, 3, "h", "w"])])
    inputs = [{"name": "image", "dtype": "uint8", "shape": ["h", "w", 3]}]
    weights = module.params({"mean": np.array([0.1, 0.2, 0.3], "f4")})
    return module.graph([stage], inputs, [{"name": "x"}], params=weights)


def test_from_three_files(whole, tmp_path):
    whole.save_graph_json(tmp_path / "graph.json")
    module.export_library(whole.library, tmp_path / "stages.so")
    module.export_library(whole.params, tmp_path / "weights.so")
    image = np.arange(48, dtype="u1").reshape(4, 4, 3)
    for json in (tmp_path / "graph.json", (tmp_path / "graph.json").read_text()):
        made = graph.create(json, tmp_path / "stages.so", str(tmp_path / "weights.so"))
        assert np.array_equal(made(image), whole(image))
    darker = graph.create(tmp_path / "graph.json", whole.library, {"mean": np.ones(3, "f4")})
    assert darker(image).max() <= 0


def test_parts_that_are_not_there(whole, tmp_path):
    with pytest.raises(UsageError, match=r"graph\.json cannot be read: No such file"):
        graph.create(tmp_path / "graph.json", whole.library)
    whole.save_graph_json(tmp_path / "graph.json")
    with pytest.raises(UsageError, match=r"stages\.so: there is no such file"):
        graph.create(tmp_path / "graph.json", tmp_path / "stages.so")
