"""Which stage of a graph failed."""

from __future__ import annotations

import numpy as np
import pytest

from rpcsys.errors import RemoteError, RemoteFunctionError
from rpcsys.module import graph, python
from rpcsys.module.kinds.graph import Stage
from rpcsys.module.stage_errors import failing, name


def test_a_named_error_tells_its_stage() -> None:
    error = RemoteError("no memory", type="NativeError")
    assert failing(error, ["one", "two"]) == ""
    name(error, "two")
    assert str(error) == "NativeError: stage 'two': no memory"
    assert failing(error, ["one", "two"]) == "two"
    assert failing(error, ["tw"]) == ""


@pytest.mark.parametrize("error", [KeyError(3), OSError(2, "no such file"), ValueError()])
def test_an_error_without_a_text_stays_as_it_is(error: Exception) -> None:
    text = str(error)
    name(error, "one")
    assert str(error) == text
    assert failing(error, ["one"]) == ""


def fails(x: object) -> object:
    raise RemoteFunctionError("broken")


@pytest.mark.parametrize(("count", "stage"), [(2, "last"), (1, "")])
def test_one_of_several_stages_is_named(count: int, stage: str) -> None:
    first = Stage("first", python({"main": lambda x: x}), ["x"], ["t"])
    last = Stage("last", python({"main": fails}), ["t" if count > 1 else "x"], ["y"])
    module = graph([first, last][2 - count :], [{"name": "x"}], [{"name": "y"}])
    with pytest.raises(RemoteFunctionError, match="broken") as caught:
        module(np.zeros(1))
    assert failing(caught.value, ["first", "last"]) == stage
