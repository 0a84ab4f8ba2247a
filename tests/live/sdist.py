"""Real CMake projects, cross-compiled with our toolchain files: apache-tvm-ffi's source from PyPI, and TVM's runtime.

PyPI has no source of TVM, but TVM's wheel contains most of the runtime's source (``tvmruntime/CMakeLists.txt``).
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from rpcsys import data
from tests.live.emulated import store

CMAKE = Path(sysconfig.get_path("scripts")) / "cmake"
PACKAGE = "apache-tvm-ffi"
RUNTIME = Path(__file__).with_name("tvmruntime")
BUILD_S = 1500


def source() -> Path:
    """The unpacked source of the installed version; downloaded once, then cached."""
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
    """The folder with the project's libraries for a target; cached until the source or a toolchain file changes."""
    return _cached(source().name, triple, [], lambda folder: build(source(), folder, triple, "tvm_ffi_shared"))


def runtime(triple: str) -> Path:
    """The folder with libtvm_ffi and libtvm_runtime for a target, of the installed TVM; cached likewise."""
    ffi = next(built(triple).rglob("libtvm_ffi.so"))

    def make(folder: Path) -> None:
        options = (f"-DTVM={_package('tvm')}", f"-DFFI={_package('tvm_ffi')}", f"-DFFI_LIBRARY={ffi}")
        build(RUNTIME, folder, triple, "tvm_runtime", *options)
        shutil.copy2(ffi, folder)

    texts = [path for path in RUNTIME.rglob("*") if path.is_file()]
    return _cached(f"tvm_runtime-{metadata.version('apache-tvm')}", triple, texts, make)


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _cached(name: str, triple: str, texts: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """The folder that ``make`` fills, once for each content of the toolchain file and of ``texts``."""
    toolchains = data.folder("toolchains")
    texts = [toolchains / f"{triple}.cmake", toolchains / "cross.cmake", *sorted(texts)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in texts)).hexdigest()
    folder = store() / f"{name}-{triple}-{digest[:12]}"
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            make(folder)
            (folder / "done").touch()
    return folder


def build(project: Path, folder: Path, triple: str, target: str, *options: str) -> None:
    """Configure and build a target of the project in ``folder``."""
    file = data.folder("toolchains") / f"{triple}.cmake"
    light = [f"-DCMAKE_{language}_FLAGS_RELEASE=-O1" for language in ("C", "CXX")]  # compiles in half the time
    kind = ("-DCMAKE_BUILD_TYPE=Release", *light, "--toolchain", str(file))
    run([str(CMAKE), "-S", str(project), "-B", str(folder), *kind, *options])
    run([str(CMAKE), "--build", str(folder), "--parallel", "2", "--target", target])


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
