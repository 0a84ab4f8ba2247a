"""One line about the machine of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

PACKAGES = ("numpy", "apache-tvm", "onnxruntime", "grpcio", "rpyc")


def describe() -> dict[str, str]:
    """Processor, cores, kernel, Python, load, and the versions of the installed peers."""
    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.1f}",
        **{name: version for name in PACKAGES if (version := installed_version(name))},
    }


def line(machine: dict[str, str]) -> str:
    """The description as one line of text."""
    bare = ("processor", "kernel")
    return ", ".join(value if name in bare else f"{name} {value}" for name, value in machine.items())


def installed_version(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's model name, on Linux from /proc/cpuinfo."""
    try:
        for text in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = text.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
