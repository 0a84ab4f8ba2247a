"""A real CMake project, cross-compiled with our toolchain files: apache-tvm-ffi, from its source on PyPI."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import sysconfig
import tarfile
from importlib import metadata
from pathlib import Path

from rpcsys import data
from tests.live.emulated import store

CMAKE = Path(sysconfig.get_path("scripts")) / "cmake"
PACKAGE = "apache-tvm-ffi"
BUILD_S = 1500


def source() -> Path:
    """The unpacked source of the version that is installed here; downloaded once, and kept."""
    version = metadata.version(PACKAGE)
    folder = store() / f"{PACKAGE.replace('-', '_')}-{version}"
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--no-binary={PACKAGE}"]
            run([*pip, "--dest", str(folder.parent), f"{PACKAGE}=={version}"])
            archive = folder.with_name(folder.name + ".tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(folder.parent, filter="data")
            archive.unlink()
    return folder


def built(triple: str) -> Path:
    """The folder with the project's libraries for a target; kept until the source or a toolchain file changes."""
    toolchains = data.folder("toolchains")
    texts = b"".join((toolchains / name).read_bytes() for name in (f"{triple}.cmake", "cross.cmake"))
    folder = store() / f"{source().name}-{triple}-{hashlib.sha256(texts).hexdigest()[:12]}"
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            build(folder, "--toolchain", str(toolchains / f"{triple}.cmake"))
            (folder / "done").touch()
    return folder


def build(folder: Path, *options: str) -> None:
    """Configure and build the project in ``folder``."""
    run([str(CMAKE), "-S", str(source()), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release", *options])
    run([str(CMAKE), "--build", str(folder), "--parallel", "2", "--target", "tvm_ffi_shared"])


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
