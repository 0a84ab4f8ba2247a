"""Device servers without Python, of what PyPI has of TVM in C++: its runtime's session loop, and its MinRPC server.

TVM's own program ``cpp_rpc`` is not among it: TVM's wheel contains the runtime's source without ``apps``, and PyPI has
no source archive of TVM. So ``tvmserver/server.cc`` takes its place: it offers itself as that program does, and hands
each session to TVM's code. The MinRPC server is TVM's own program, built with a model in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from tests.live.emulated import store
from tests.live.sdist import RUNTIME, run

SERVER = Path(__file__).with_name("tvmserver") / "server.cc"
#: Compiles ``addone`` over 1024 float32 into an object file that registers it in the program it is linked into.
MODEL = """
import sys
import tvm
from tvm import te

x = te.placeholder((1024,), "float32", name="x")
y = te.compute((1024,), lambda i: x[i] + 1.0, name="y")
addone = te.create_prim_func([x, y]).with_attr("global_symbol", "addone")
program = tvm.IRModule({"addone": addone}).with_attr("system_lib_prefix", "")
tvm.compile(program, target="llvm").mod.write_to_file(sys.argv[1])
"""


def built() -> Path:
    """The folder with the programs ``server`` and ``minrpc``; cached until their sources or TVM's version change."""
    texts = [SERVER.read_bytes(), (RUNTIME / "support" / "arena.h").read_bytes(), MODEL.encode()]
    versions = "-".join(metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi"))
    folder = store() / f"standalone-{versions}-{hashlib.sha256(b''.join(texts)).hexdigest()[:12]}"
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _build(folder)
            (folder / "done").touch()
    return folder


def _build(folder: Path) -> None:
    tvm, ffi = _package("tvm"), _package("tvm_ffi")
    minrpc = tvm / "src" / "runtime" / "rpc" / "minrpc"
    include = [f"-I{path}" for path in (minrpc, RUNTIME / "include" / "tvm", tvm / "include", ffi / "include")]
    # The runtime registers its functions when it is loaded; the programs refer to none of its symbols.
    link = [*(f"-L{path}" for path in libraries()), "-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi"]
    compiler = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", "-w", *include]
    model = folder / "model.o"
    done = subprocess.run([sys.executable, "-c", MODEL, str(model)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    program = minrpc / "posix_popen_server" / "posix_popen_server.cc"
    for name, sources in (("server", [SERVER]), ("minrpc", [program, model])):
        run([*compiler, *map(str, sources), "-o", str(folder / name), *link])


def libraries() -> list[Path]:
    """The folders with TVM's libraries, which the programs find by ``LD_LIBRARY_PATH``."""
    return [_package(name) / "lib" for name in ("tvm", "tvm_ffi")]


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
