from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rpcsys


def test_every_public_name_is_there() -> None:
    assert dir(rpcsys) == sorted(rpcsys.__all__)
    assert all(getattr(rpcsys, name) is not None for name in rpcsys.__all__)


def test_public_names_come_from_their_modules() -> None:
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


def test_onnxruntime_leaves_no_files(tmp_path: Path) -> None:
    """Its telemetry is off from its import on, wherever rpcsys was imported before; a user's own choice stays."""
    pytest.importorskip("onnxruntime")
    places = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    code = "import rpcsys, onnxruntime"
    subprocess.run([sys.executable, "-c", code], env={**env, **places}, timeout=60, check=True)
    assert list(tmp_path.iterdir()) == []
    code = "import os, rpcsys; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    chosen = {**env, "ORT_DISABLE_TELEMETRY": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=chosen, capture_output=True, timeout=60, check=True)
    assert done.stdout == b"0\n"


def test_a_query_of_a_tracker_imports_no_numpy() -> None:
    code = "import sys, rpcsys.client.tracker; print({'numpy', 'asyncio', 'rpcsys.graph'} & set(sys.modules))"
    for imports in ("", "from rpcsys.client import connect_tracker, Tracker; "):
        done = subprocess.run(
            [sys.executable, "-c", imports + code], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout == "set()\n"


def test_the_clients_names_exist_in_any_import_order() -> None:
    assert dir(rpcsys.client) == sorted(rpcsys.client.__all__)
    code = (
        "import rpcsys.client.session, rpcsys.client.connection, rpcsys.client as c;"
        "print([name for name in c.__all__ if not callable(getattr(c, name))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match=r"module 'rpcsys\.client' has no attribute 'nonsense'"):
        _ = rpcsys.client.nonsense


def test_one_version_everywhere() -> None:
    assert importlib.metadata.version("rpcsys") == rpcsys.__version__


AS_PYTHON = (
    "import runpy, sys; sys.version_info = ({}, 0, 'final', 0); sys.argv = ['x']; runpy._run_module_as_main({!r})"
)


@pytest.mark.parametrize(
    ("program", "python", "needed"),
    [
        *((f"rpcsys{part}", "3, 9", "3.10") for part in ("", ".tracker", ".proxy", ".query")),
        ("rpcsys.server", "3, 7", "3.8"),
    ],
)
def test_a_python_that_is_too_old_gets_one_line(program: str, python: str, needed: str) -> None:
    code = AS_PYTHON.format(python, program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode
    assert len(done.stderr.splitlines()) == 1
    assert f"needs Python {needed} or later" in done.stderr
