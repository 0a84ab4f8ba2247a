"""What this device can do beyond the standard library: probed here, sent in HELLO and to the tracker."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from typing import Any, Mapping

from rpcsys.ffi import library
from rpcsys.module import elf, loading
from rpcsys.server import versions as detected
from rpcsys.stream import SPEEDUPS
from rpcsys.wire import encoding
from rpcsys.wire.labels import VERSIONS

STUB = "numpy_stub"  # the folder of the stub that replaces a missing numpy: names without arrays
_PACKAGES = ("numpy", "onnxruntime", "onnx", "cloudpickle", "tvm")


def capabilities(
    *, pickle: bool = False, cache: bool = False, deploy: bool = False, execs: bool = False
) -> dict[str, Any]:
    """Which optional packages are installed, which files a session can load, what the flags allow. Imports nothing."""
    return {
        **{package: installed(package) for package in _PACKAGES},
        "python": "{}.{}".format(*sys.version_info[:2]),
        "versions": versions(),
        "speedups": SPEEDUPS,
        "pickle": pickle,
        "cache": cache,
        "deploy": deploy,
        "exec": execs,  # whether sessions start programs and forward ports
        "turns": True,  # whether sessions time functions in turns
        "profile": True,  # `session.profile`
        "tvm_runtime": library.has_runtime(),  # whether TVM's libraries are there, with the package or without
        "loads": loads(),
        "kinds": kinds(pickle=pickle),  # of modules in those files
        "encodings": encoding.known(installed),  # of arrays
        "threads": True,  # whether session.load_module takes the number of a model's threads
        "target": list(elf.here()),  # machine and bits of native code
        "candidates": True,  # `session.measure`
        "transfers": True,  # `session.tree` and others, for push and pull
        "hold": True,  # whether a session can be held, and others attach to it
    }


def versions() -> dict[str, str]:
    """The version of each part in `VERSIONS` that is found here, as ``{"python": "3.11.2", "libc": "2.36"}``."""
    packages = filter(installed, detected.PACKAGES)
    found = {detected.LABELS.get(name, name): detected.of_package(name) for name in packages}
    found.update(detected.of_board())
    return {name: found[name] for name in VERSIONS if 0 < len(found.get(name, "")) <= 64 and found[name].isprintable()}


def warm() -> None:
    """Fill the caches before forking sessions from this process: the search takes longer than opening a session."""
    capabilities()
    machine()


def installed(package: str) -> bool:
    """Whether ``package`` can be imported and is no stub; does not import it."""
    if package in sys.modules:
        module = sys.modules[package]
        return module is not None and not hasattr(module, "__rpcsys_stub__")
    return _found(package)


@functools.lru_cache(maxsize=None)
def _found(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and STUB not in (spec.origin or "").split(os.sep)


def loads() -> list[str]:
    """Suffixes of the files that `session.load_module` accepts on this device."""
    there = [suffix for suffix, packages in loading.SUFFIXES.items() if all(map(installed, packages))]
    return [".onnx", *there] if ".xml" in there and ".onnx" not in there else there  # OpenVINO reads both


def kinds(*, pickle: bool = False) -> list[str]:
    """Kinds of modules in a library that `session.load_module` accepts here, except those of TVM's runtime."""
    return [kind for kind in loading.kinds(installed) if pickle or kind != "rpcsys.python"]


def machine() -> dict[str, Any]:
    """This board's architecture, cores this process may use, memory in bytes, system and host name."""
    import platform  # not at the top: an idle server does not need it

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    board = {"arch": platform.machine(), "cores": cores, "memory": memory()}
    return {**board, "system": platform.system(), "host": platform.node()}


def memory() -> int:
    """Bytes of memory of the board; 0 where the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def labels(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """A server's labels: at most 17 that are detected, and those that its keeper has ``given``, which win.

    ``memory_mb`` is in MB (2**20 bytes). Versions come last, for trackers that accept fewer labels.
    """
    board = machine()
    numbers = {"cores": str(board["cores"] or 0), "memory_mb": str(board["memory"] >> 20)}
    found = {"name": name, "arch": board["arch"], "system": board["system"], **numbers, **given}
    return {**found, **{label: version for label, version in versions().items() if label not in given}}
