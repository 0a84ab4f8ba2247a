"""Compiles TVM's OpenCL runtime from the files of this folder, for the TVM of the Python that runs this.

python3 build.py [FILE]     FILE: libtvm_opencl.so in the working folder, if none is given

Needs apache-tvm from PyPI, OpenCL's headers and loader, and a compiler for C++17 (CXX, or g++). CXXFLAGS are added.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
#: What a compiler says if it is missing -> the package that has it.
PACKAGES = {"CL/cl.h": "opencl-headers", "lOpenCL": "ocl-icd-opencl-dev"}


def package(name: str) -> Path:
    """The folder of a Python package, which is not imported. Raises SystemExit if there is none."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"there is no Python package {name} in {sys.executable}; type: pip install apache-tvm")
    return Path(spec.origin).parent


def compiler() -> list[str]:
    """The compiler of C++."""
    return shlex.split(os.environ.get("CXX", "g++"))


def command(target: Path) -> list[str]:
    """What compiles the library to ``target``."""
    tvm, ffi = package("tvm"), package("tvm_ffi")
    headers = [tvm / "include", tvm / "src" / "runtime", ffi / "include"]
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
    flags += ["-Wall", "-Wextra", "-Wno-unused-parameter"]
    flags += shlex.split(os.environ.get("CXXFLAGS", "-s"))
    sources = map(str, sorted(FOLDER.glob("*.cc")))
    # By name, without a path to them: the libraries that the process has loaded already are used.
    libraries = [f"-L{tvm / 'lib'}", f"-L{ffi / 'lib'}", "-ltvm_runtime", "-ltvm_ffi", "-lOpenCL"]
    return [*compiler(), *flags, *(f"-I{folder}" for folder in headers), *sources, *libraries, "-o", str(target)]


def build(target: Path) -> None:
    """Compile the library to ``target``. Raises SystemExit, with one line."""
    words = command(target)
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SystemExit(f"{words[0]}: {error.strerror}; type: sudo apt-get install g++") from None
    if done.returncode:
        lines = done.stderr.splitlines() or [f"{words[0]} failed"]
        line = next((line for line in lines if "error" in line or "cannot find" in line), lines[0])
        missing = [name for sign, name in PACKAGES.items() if sign in line]
        raise SystemExit(line + (f"; type: sudo apt-get install {missing[0]}" if missing else ""))


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "libtvm_opencl.so"))
