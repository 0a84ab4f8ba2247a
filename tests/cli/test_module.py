from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command
from tests.module.libraries import library, tree


def test_inspect_shows_the_tree(rpcsys: Command, tmp_path: Path) -> None:
    (tmp_path / "m.so").write_bytes(library(tree(("a", (1,), b"x"), ("b", (), b"y")), ("aarch64", 64)))
    done = rpcsys("module", "inspect", "m.so")
    assert (done.returncode, done.stderr) == (0, "")
    first, root, leaf = done.stdout.splitlines()
    assert first == "m.so: 4188 bytes, aarch64 (64 bits)"
    assert (root.split()[:2], leaf.split()[:2]) == (["[0]", "a"], ["[1]", "b"])
    seen = json.loads(rpcsys("module", "inspect", "m.so", "--json").stdout)
    assert [module["kind"] for module in seen["modules"]] == ["a", "b"]


def test_what_is_wrong_is_one_line(rpcsys: Command, tmp_path: Path) -> None:
    (tmp_path / "m.so").write_bytes(b"text")
    for name, status, words in (("none.so", 2, "No such file"), ("m.so", 1, "is not an ELF shared library")):
        done = rpcsys("module", "inspect", name)
        assert (done.returncode, done.stdout) == (status, "")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
