"""The versions of what sessions on this board run with: packages, Python, the C library, the kernel, NVIDIA's driver.

No package is imported for that, since one may take seconds and most of a small board's memory.
"""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import re
import sys
from typing import Dict

#: The packages, and the distribution that usually contains each: a folder like ``apache_tvm-0.27.0.dist-info``.
PACKAGES = {
    "numpy": "numpy", "onnxruntime": "onnxruntime", "tvm": "apache_tvm", "tvm_ffi": "apache_tvm_ffi",
    "openvino": "openvino", "ai_edge_litert": "ai_edge_litert", "iree.runtime": "iree_base_runtime",
    "executorch": "executorch",
}  # fmt: skip
#: Packages whose label has another name.
LABELS = {"ai_edge_litert": "litert", "iree.runtime": "iree"}
_DRIVER = "/proc/driver/nvidia/version"
_NVRM = re.compile(r"^NVRM version:.*?\s([0-9]+(?:\.[0-9]+)+)(?:\s|$)", re.MULTILINE)
_LOADER = "/lib/ld-musl-*.so.1"
_SOURCES = ("_version.py", "version.py", "libinfo.py", "__init__.py")  # of a package, where its version may be
_IN_SOURCE = re.compile(
    r"""^\s*"?(?:__)?version(?:__)?"?\s*[:=](?:\s*version\s*=)?\s*["']([^"'\s]+)["']""", re.MULTILINE
)
_MAX_FILE = 1 << 16  # bytes that are read of a file


def of_board() -> Dict[str, str]:
    """The versions of Python, the C library, the kernel and the driver; "" for one that is not found."""
    return {"python": sys.version.split()[0], "libc": _libc(), "kernel": os.uname().release, "driver": driver()}


@functools.lru_cache(maxsize=None)
def of_package(package: str) -> str:
    """The version of one of `PACKAGES`, "" if nothing tells it: a distribution beside it, else the package's source."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        beside = os.path.dirname(folder) if "." not in package else os.path.dirname(os.path.dirname(folder))
        pattern = os.path.join(glob.escape(beside), PACKAGES[package] + "-*-info")
        for path in sorted(glob.glob(pattern)):  # numpy-1.24.2.dist-info, or numpy-1.24.2-py3.11.egg-info
            return os.path.basename(path)[len(PACKAGES[package]) + 1 :].rpartition(".")[0].partition("-py")[0]
        for name in _SOURCES:
            match = _IN_SOURCE.search(_read(os.path.join(folder, name)))
            if match:
                return match.group(1)
    return ""


def _libc() -> str:
    """``2.36`` for glibc, ``musl-1.2.3`` for musl, else ""."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return _musl()
    return version if name == "glibc" else ""


def _musl() -> str:
    """The version of musl, which its loader prints where it is run without a program."""
    import subprocess  # not at the top: only boards with musl need it

    for path in glob.glob(_LOADER):
        try:
            text = subprocess.run([path], check=False, capture_output=True, timeout=5).stderr.decode("utf-8", "replace")
        except (OSError, subprocess.SubprocessError):
            continue
        match = re.search(r"^Version (\S+)", text, re.MULTILINE)
        if match:
            return "musl-" + match.group(1)
    return ""


def driver() -> str:
    """NVIDIA's driver: ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 …``."""
    match = _NVRM.search(_read(_DRIVER))
    return match.group(1) if match else ""


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_FILE).decode("utf-8", "replace")
    except OSError:
        return ""
