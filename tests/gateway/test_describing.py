"""Views of models."""

from __future__ import annotations

import pytest

from rpcsys.gateway.calls import Batching
from rpcsys.gateway.describing import described
from tests.gateway.transcripts import said, tensor


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("0003-1f2e3d4c5b6a", "3"),
        ("0010-0", "10"),
        ("7", "7"),
        ("", "1"),
        ("latest", "latest"),
        ("\u0663-a", "\u0663-a"),
    ],
)
def test_a_version_is_the_number_of_a_deployment(version: str, number: str) -> None:
    view = described("m", said(version=version), None, 0)
    assert (view.version, view.whole_version) == (number, version)


@pytest.mark.parametrize(
    ("kind", "platform"), [("rpcsys.onnx", "onnxruntime_onnx"), ("rpcsys.graph", "rpcsys_graph"), ("", "rpcsys_module")]
)
def test_the_platform_is_what_runs_it(kind: str, platform: str) -> None:
    assert described("m", said(kind=kind), None, 0).platform == platform


def test_free_extents_have_no_number() -> None:
    (value,) = described("m", said(inputs=[tensor("x", "float32", ("n", None, 3))]), None, 0).inputs
    assert value.shape == ("n", None, 3)
    assert value.extents == [-1, -1, 3]


@pytest.mark.parametrize("about", [{"name": "x"}, {"name": "x", "dtype": None, "shape": None}])
def test_a_type_that_is_not_known_is_a_reason(about: dict[str, object]) -> None:
    view = described("m", said(inputs=[about]), Batching(4), 0)
    assert view.reason == "input 'x' is of type unknown, which the protocol does not have"
    assert view.batching is None


def test_equal_hellos_make_equal_views() -> None:
    assert described("m", said(), Batching(4), 0) == described("m", said(), Batching(4), 0)
