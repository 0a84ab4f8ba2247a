"""Calls whose arrays cross encoded."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from rpcsys.errors import NotSupported, UsageError
from rpcsys.graph._build.encoding import check_encoding, encoded_call
from rpcsys.wire import encoding
from tests.graph.running import numbers


def module(inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> mock.MagicMock:
    made = mock.MagicMock()
    made.inputs, made.outputs = inputs, outputs
    return made


def test_only_what_it_applies_to_is_encoded() -> None:
    floats, ints = {"name": "a", "dtype": "float32"}, {"name": "b", "dtype": "int64"}
    sequence = {"name": "c", "dtype": "seq(tensor(float))"}
    remote = module([floats, ints, sequence], [ints, floats])
    encoded_call(remote, "float16")(numbers(2), np.arange(2), [numbers(2)])
    remote["main"].encoding.assert_called_once_with({"1": "float16"})
    (first, second, third), _ = remote["main"].encoding().call_args
    assert isinstance(first, encoding.Encoded)
    assert isinstance(second, np.ndarray)
    assert isinstance(third, list)
    assert encoded_call(remote, "") is remote


def test_a_device_that_cannot_decode_is_said() -> None:
    session = mock.MagicMock()
    session.info = {"capabilities": {"encodings": ["zlib"]}}
    check_encoding(session, "zlib", "key:edge")
    check_encoding(session, "", "key:edge")
    with pytest.raises(NotSupported, match="key:edge cannot decode int8"):
        check_encoding(session, "int8+zlib", "key:edge")
    with pytest.raises(UsageError, match="no encoding"):
        check_encoding(session, "gif", "key:edge")
