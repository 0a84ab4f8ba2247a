"""OpenCL's devices in the process of the tests: TVM's runtime with our plug-in, on PoCL."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import pytest

from rpcsys.ffi import library
from tests import opencl

DEVICE = "opencl:0"


@functools.cache
def load() -> None:
    """Load the plug-in. Skips the test where something is missing that it is made of."""
    path = opencl.library()
    os.environ.update(opencl.environment(path.parent / "kernels"))
    library.load_runtime()
    ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of a test run share."""
    base = factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


def programs(factory: pytest.TempPathFactory) -> opencl.Programs:
    """OpenCL programs, compiled once in a test run; the plug-in is loaded."""
    load()
    return opencl.programs(shared_folder(factory))
