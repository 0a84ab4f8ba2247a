"""The code for each kind of module: rpcsys's own and other packages'."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rpcsys.module import registry
from rpcsys.module.layout import FormatError
from rpcsys.server.capabilities import installed
from tests.device_files import ROOT, device_files


def test_rpcsys_kinds_are_in_the_device_tier():
    files = device_files()
    for name in registry._BUILTIN:
        if not all(map(installed, registry.needs(name))):
            continue  # executorch, with torch
        kind = registry.find(name)
        path = Path(kind.__file__).relative_to(ROOT)
        assert files[path] <= {each.partition(".")[0] for each in registry.needs(name)}, name
        assert callable(kind.save_to_bytes)
        assert callable(kind.load_from_bytes)


def test_known_kinds():
    assert "_lib" in registry.known()
    assert registry.needs("rpcsys.group") == ()
    with pytest.raises(FormatError, match="known are _lib, "):
        registry.find("no.such.kind")


BROUGHT = """
import sys
from rpcsys.module import layout, registry, tree
assert "acme.text" in registry.known() and "acme" not in sys.modules
blob = b"".join(layout.encode([("acme.text", ())], lambda index, offset: [b"hello"]))
module = tree.load(layout.decode(memoryview(blob)), registry.Context("model.so", None))
print(module["text"](), b"".join(tree.save(module)) == blob)
"""

ACME = """
from rpcsys.module.module import Module
def load_from_bytes(data, context):
    return Module("acme.text", {"text": lambda: bytes(data).decode()})
def save_to_bytes(module, offset):
    return [module["text"]().encode()]
"""


def test_a_kind_of_another_package(tmp_path):
    (tmp_path / "acme.py").write_text(ACME)
    about = tmp_path / "acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[rpcsys.kinds]\nacme.text = acme\n")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + BROUGHT],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "hello True\n", done.stderr


def test_without_such_packages_importlib_metadata_is_not_loaded():
    code = (
        "import sys; from rpcsys.module import registry; registry.known(); print('importlib.metadata' in sys.modules)"
    )
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + code
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
