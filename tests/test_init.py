from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import rpcsys


def test_every_public_name_is_there() -> None:
    assert dir(rpcsys) == sorted(rpcsys.__all__)
    assert all(getattr(rpcsys, name) is not None for name in rpcsys.__all__)


def test_names_come_from_where_they_live() -> None:
    from rpcsys.client import connect, inout
    from rpcsys.errors import RpcsysError

    assert rpcsys.connect is connect
    assert rpcsys.inout is inout
    assert rpcsys.RpcsysError is RpcsysError
    assert rpcsys.lab.Lab.__module__ == "rpcsys.lab"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rpcsys' has no attribute 'nonsense'"):
        _ = rpcsys.nonsense
    with pytest.raises(ImportError):
        from rpcsys import nonsense  # noqa: F401


def test_nothing_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, rpcsys; print(sorted(n for n in sys.modules if n.startswith('rpcsys')));"
        "rpcsys.empty; print('rpcsys.client' in sys.modules, 'rpcsys.lab' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["['rpcsys']", "True False"]


def test_one_version_everywhere() -> None:
    assert importlib.metadata.version("rpcsys") == rpcsys.__version__
