"""TVM's OpenCL runtime (native/tvm_opencl), and programs for it: compiled once, for all processes of a test run.

The library is kept in the user's cache, under a hash of all that it is made of.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "native" / "tvm_opencl"
LENGTH = 1024
BUILD_S = 300.0
#: Where something of a Debian package is.
PACKAGES = {
    "opencl-headers": (Path("/usr/include/CL/cl.h"),),
    "ocl-icd-opencl-dev": tuple(Path("/usr/lib").glob("*/libOpenCL.so")),
    "pocl-opencl-icd": (Path("/etc/OpenCL/vendors/pocl.icd"),),
}


def missing() -> str:
    """One line about the packages that the tests need and this machine lacks; empty if it has all."""
    lacking = [name for name, places in PACKAGES.items() if not any(place.exists() for place in places)]
    return f"no OpenCL here; type: sudo apt-get install {' '.join(lacking)}" if lacking else ""


@functools.cache
def library() -> Path:
    """libtvm_opencl.so. Skips the test where something is missing that it is made of."""
    pytest.importorskip("tvm")
    if missing():
        pytest.skip(missing())
    made = _cache() / f"tvm_opencl-{_version()}" / "libtvm_opencl.so"
    with _first(made):
        if not made.exists():
            partial = made.with_name(f"{os.getpid()}.partial")
            environment = {**os.environ, "CXXFLAGS": "-O1"}
            command = [sys.executable, str(SOURCES / "build.py"), str(partial)]
            subprocess.run(command, env=environment, check=True, timeout=BUILD_S)
            os.replace(partial, made)
    return made


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home if os.path.isabs(home) else tempfile.gettempdir()) / "rpcsys-tests"


def _version() -> str:
    """A hash of the sources, the compiler and TVM's version."""
    compiler = subprocess.run([os.environ.get("CXX", "g++"), "--version"], capture_output=True, check=True).stdout
    parts = [path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.is_file()]
    parts += [compiler, metadata.version("apache-tvm").encode(), metadata.version("apache-tvm-ffi").encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@contextmanager
def _first(made: Path) -> Iterator[None]:
    """One process at a time, of all on this machine."""
    made.parent.mkdir(parents=True, exist_ok=True)
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment(folder: Path) -> dict[str, str]:
    """Variables with which PoCL has 1 GiB of memory and one core, and keeps what it compiles in ``folder``."""
    return {"POCL_CACHE_DIR": str(folder), "POCL_MAX_PTHREAD_COUNT": "1", "POCL_MEMORY_LIMIT": "1"}


# ---------------------------------------------------------------- programs


class Programs:
    """Libraries for target "opencl", in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.addone = folder / "addone.so"  # addone(x, y): y = x + 1 over 1024 float32
        self.relax = folder / "relax.so"  # a Relax program: main(x) = relu(x @ `weights`), x (4, 8) float32
        self.wrong = folder / "wrong.so"  # addone, with a kernel that does not compile
        self.candidate = folder / "candidate.so"  # addone as a candidate of a tuner, main(x, y)
        self.scale = folder / "scale.so"  # scale(x, factor, y): y = x * factor, x and y (n,) float32 for any n
        self.large = folder / "large.so"  # addone, in groups of more work items than a device takes


def programs(shared: Path) -> Programs:
    """The programs, in a folder of the whole run. A separate process compiles them."""
    folder = shared / "opencl-programs"
    made = Programs(folder)
    with _first(made.addone):
        if not made.large.exists():
            command = [sys.executable, "-m", "tests.opencl", str(folder)]
            subprocess.run(command, check=True, cwd=ROOT, timeout=BUILD_S)
    return made


def weights() -> Any:
    """The constant (8, 8) float32 of `Programs.relax`."""
    import numpy as np

    return (np.arange(64, dtype="float32").reshape(8, 8) - 32) / 64


def compile_all(made: Programs) -> None:
    """Compile the programs, the last one at the end."""
    _compile_relax(made.relax)
    addone(256).export_library(str(made.addone))
    made.wrong.write_bytes(made.addone.read_bytes().replace(b"1.000000e+00f", b"no_number_now"))
    addone(256, "main").export_library(str(made.candidate))
    _scale().export_library(str(made.scale))
    addone(1 << 20).export_library(str(made.large))


def _target() -> Any:
    import tvm

    return tvm.target.Target({"kind": "opencl"}, host="llvm")


def addone(group: int, name: str = "addone") -> Any:
    """``addone`` in groups of so many work items; what is beyond the array does nothing."""
    from tvm import te

    x = te.placeholder((LENGTH,), "float32", name="x")
    return _compiled(name, [x], te.compute((LENGTH,), lambda i: x[i] + 1.0, name="y"), group)


def _scale() -> Any:
    from tvm import te, tirx

    length, factor = tirx.Var("n", "int32"), tirx.Var("factor", "float32")
    x = te.placeholder((length,), "float32", name="x")
    return _compiled("scale", [x, factor], te.compute((length,), lambda i: x[i] * factor, name="y"), 32)


def _compiled(name: str, arguments: list[Any], y: Any, group: int) -> Any:
    import tvm
    from tvm import te

    schedule = tvm.s_tir.Schedule(te.create_prim_func([*arguments, y]).with_attr("global_symbol", name))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    outer, inner = schedule.split(loop, [None, group])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    return tvm.compile(tvm.IRModule({name: schedule.mod["main"]}), target=_target())


def _compile_relax(path: Path) -> None:
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(weights())))
            y = builder.emit_output(relax.op.nn.relu(product))
        builder.emit_func_output(y)
    tvm.compile(builder.get(), target=_target()).export_library(str(path))


if __name__ == "__main__":
    compile_all(Programs(Path(sys.argv[1])))
