from __future__ import annotations

from types import MappingProxyType

import pytest

from rpcsys.errors import RemoteArgumentError
from rpcsys.wire.by_name import inputs_by_name, output_names


@pytest.mark.parametrize(("given", "names"), [(None, None), ("yy", ["yy"]), (("a", "b"), ["a", "b"]), ([], [])])
def test_outputs_are_names_or_one_name(given, names):
    assert output_names(given) == names


def test_inputs_are_a_mapping():
    assert inputs_by_name(MappingProxyType({"a": 1}), ()) == {"a": 1}
    with pytest.raises(RemoteArgumentError, match=r"such as \{'x': array\}, not as NoneType"):
        inputs_by_name(None, ())
