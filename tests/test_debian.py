"""debian/ agrees with pyproject.toml and the package."""

from __future__ import annotations

import re
import sys

import pytest

import rpcsys
from tests.device_files import ROOT

CONTROL = (ROOT / "debian" / "control").read_text(encoding="utf-8")


def test_the_version_is_the_packages() -> None:
    first = (ROOT / "debian" / "changelog").read_text(encoding="utf-8").split()[1]
    assert first == f"({rpcsys.__version__})"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is part of Python from 3.11 on")
def test_every_dependency_has_its_minimum_version() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = dict(re.match(r"([\w-]+)>=([\d.]+)", line).groups() for line in project["dependencies"])
    there = dict(re.findall(r"python3-([\w-]+) \(>= (?:1:)?([\d.]+)\)", CONTROL))
    assert there == wanted
