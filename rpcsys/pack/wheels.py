"""TVM's libraries out of the wheels that PyPI has for the board's platform."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from rpcsys.errors import RpcsysError, UsageError
from rpcsys.pack.libraries import FFI, RUNTIME, Source, Target

#: Where wheels are to be had: target -> what pip calls its processor.
PLATFORMS = {"aarch64-linux-gnu": "aarch64", "x86_64-linux-gnu": "x86_64"}
#: Package -> the library in it, and the Python its wheel is for (the library itself does not care).
_PACKAGES = {"apache-tvm-ffi": f"tvm_ffi/lib/{FFI}", "apache-tvm": f"tvm/lib/{RUNTIME}"}
_MANYLINUX = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux2014")
_PYTHON = "3.11"
_PIP_S = 1800


def fetch(target: Target, work: Path) -> list[Source]:
    """Download the wheels with pip and take the two libraries out.

    Of apache-tvm the version that is installed here, if one is, so that what is compiled here runs there;
    else the newest. Raises UsageError where there are none for the target, RpcsysError when pip fails.
    """
    if target.name not in PLATFORMS:
        raise UsageError(
            f"PyPI has no wheels of TVM for {target.name}; build TVM's target runtime with the toolchain file "
            "and give its folder: --libraries DIR (docs/boards.md)"
        )
    wheels = work / "wheels"
    platforms = [word for tag in _MANYLINUX for word in ("--platform", f"{tag}_{PLATFORMS[target.name]}")]
    _pip(
        [
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            _PYTHON,
            *platforms,
            "--dest",
            str(wheels),
            *map(_wanted, _PACKAGES),
        ]
    )
    return [_take(wheels, package, library, work) for package, library in _PACKAGES.items()]


def _wanted(package: str) -> str:
    try:
        return f"{package}=={metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return package


def _pip(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, check=False)
    if done.returncode:
        why = [line for line in done.stderr.splitlines() if line.strip()] or ["pip said nothing"]
        raise RpcsysError(f"pip could not download TVM's wheels: {why[-1].strip()}")


def _take(wheels: Path, package: str, library: str, work: Path) -> Source:
    (wheel,) = wheels.glob(package.replace("-", "_") + "-[0-9]*.whl")
    folder = work / package
    with zipfile.ZipFile(wheel) as archive:
        licences = [name for name in archive.namelist() if Path(name).name.startswith(("LICENSE", "NOTICE"))]
        archive.extractall(folder, [library, *licences])
    return Source(folder / library, wheel.name, tuple(folder / name for name in licences))
