"""Libraries for boards, compiled by the tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rpcsys.module import toolchain

SOURCE = """
#include <math.h>
double elsewhere(double);
double f(double x) { return %s; }
"""

Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """``build(name, target, *flags, code=…)``: a shared library of one function, not stripped."""

    def make(name: str, target: str = "aarch64-linux-gnu", *flags: str, code: str = "pow(x, x)") -> Path:
        path = tmp_path / "build" / name
        path.parent.mkdir(exist_ok=True)
        source = path.with_suffix(".c")
        source.write_text(SOURCE % code)
        command = [*toolchain.find(target).command(), "-g", "-shared", "-fPIC", "-o", str(path), str(source)]
        subprocess.run([*command, *flags, "-lm"], check=True)
        return path

    return make
