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
from typing import Dict, Iterator, Optional

#: The packages, and the names of their distributions, as folders have them: ``onnxruntime_gpu-1.22.0.dist-info``.
PACKAGES = {
    "numpy": ("numpy",),
    "onnxruntime": (
        "onnxruntime",
        *("onnxruntime_" + kind for kind in ("gpu", "openvino", "qnn", "rocm", "migraphx", "cann", "training")),
    ),
    "tvm": ("apache_tvm", "tvm"),
    "tvm_ffi": ("apache_tvm_ffi",),
}
_DRIVER = "/proc/driver/nvidia/version"
_NVRM = re.compile(r"^NVRM version:.*?\s([0-9]+(?:\.[0-9]+)+)(?:\s|$)", re.MULTILINE)
_LOADER = "/lib/ld-musl-*.so.1"
_SOURCES = ("_version.py", "version.py", "libinfo.py", "__init__.py")  # of a package, where its version may be
_IN_SOURCE = re.compile(
    r"""^\s*"?(?:__)?version(?:__)?"?\s*[:=](?:\s*version\s*=)?\s*["']([^"'\s]+)["']""", re.MULTILINE
)
_MAX_TEXT = 64  # characters of a version; a longer text is none
_MAX_FILE = 1 << 16  # bytes that are read of a file


def of_board() -> Dict[str, str]:
    """The versions of Python, the C library, the kernel and the driver, without those that are not found."""
    found = {"python": sys.version.split()[0], "libc": _libc(), "kernel": os.uname().release, "driver": _driver()}
    return {name: version for name, version in found.items() if _fits(version)}


@functools.lru_cache(maxsize=None)
def of_package(package: str) -> str:
    """The version of an installed package of `PACKAGES`; "" if nothing tells it.

    A distribution beside the package tells it, else the package's source, else a distribution on ``sys.path`` (of an
    editable installation).
    """
    folder = _folder(package)
    beside = _in_distributions(package, os.path.dirname(folder)) if folder else ""
    found = beside or (_in_source(folder) if folder else "")
    return found or next(filter(None, (_in_distributions(package, path) for path in sys.path)), "")


def _folder(package: str) -> str:
    """The folder of a package, "" if it has none."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    return next(iter((spec.submodule_search_locations if spec else None) or ()), "")


def _in_distributions(package: str, folder: str) -> str:
    for name in PACKAGES[package]:
        for path in sorted(glob.glob(os.path.join(glob.escape(folder or os.curdir), name + "-*-info"))):
            version = os.path.basename(path)[len(name) + 1 :].rpartition(".")[0]
            version = version.partition("-py")[0]  # numpy-1.24.2-py3.11.egg-info
            if _fits(version):
                return version
    return ""


def _in_source(folder: str) -> str:
    for name in _SOURCES:
        match = _IN_SOURCE.search(_read(os.path.join(folder, name)))
        if match and _fits(match.group(1)):
            return match.group(1)
    return ""


def _libc() -> str:
    """``2.36`` for glibc, ``musl-1.2.3`` for musl, else ""."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return next(_musl(), "")
    return version if name == "glibc" else ""


def _musl() -> Iterator[str]:
    """The version of musl, which its loader prints where it is run without a program."""
    import subprocess

    for path in sorted(glob.glob(_LOADER)):
        try:
            done = subprocess.run([path], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, timeout=5, check=False)
        except (OSError, subprocess.SubprocessError):
            continue
        match = re.search(r"^Version (\S+)", done.stderr.decode("ascii", "replace"), re.MULTILINE)
        if match:
            yield "musl-" + match.group(1)


def _driver() -> str:
    """NVIDIA's driver: ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 …``."""
    match = _NVRM.search(_read(_DRIVER))
    return match.group(1) if match else ""


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_FILE).decode("utf-8", "replace")
    except OSError:
        return ""


def _fits(version: Optional[str]) -> bool:
    return bool(version) and len(str(version)) <= _MAX_TEXT and str(version).isprintable()
