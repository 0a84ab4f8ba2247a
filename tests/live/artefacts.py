"""Libraries that tests load on devices: compiled once per test run, shared by its processes."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpcsys.module import toolchain
from tests.live.daemons import ROOT

LENGTH = 1024
HOST = "host"


@dataclass(frozen=True)
class Artefacts:
    """The compiled libraries in ``folder``."""

    folder: Path

    @property
    def addone(self) -> Path:
        """``addone(x, y)``: y = x + 1 over 1024 float32, compiled by TVM with LLVM."""
        return self.folder / "addone.so"

    @property
    def relax(self) -> Path:
        """A Relax executable: ``main(x)`` = relu(x @ w), x (4, 8) float32; see ``relax_weights``."""
        return self.folder / "relax.so"

    @property
    def dense(self) -> Path:
        """A Relax executable with its parameters as arguments: ``main(x, w)`` = (x @ w, relu(x @ w)), float32;
        x is (n, 8) for any n, w (8, 8)."""
        return self.folder / "dense.so"

    @property
    def session_faults(self) -> Path:
        """The functions of session_faults.c."""
        return self.folder / "session_faults.so"

    @property
    def testing(self) -> Path:
        """The functions of testing.c; loading the library registers them."""
        return self.folder / "testing.so"


def relax_weights():
    """The constant (8, 8) float32 inside the Relax executable."""
    import numpy as np

    return (np.arange(64, dtype="float32").reshape(8, 8) - 32) / 64


#: Compiler triple -> TVM target.
TARGETS: dict[str, str | dict[str, Any]] = {
    HOST: "llvm",
    "aarch64-linux-gnu": {"kind": "llvm", "mtriple": "aarch64-linux-gnu"},
    "arm-linux-gnueabihf": {
        "kind": "llvm",
        "mtriple": "armv7l-linux-gnueabihf",
        "mfloat-abi": "hard",
        "mattr": ["+vfp3", "+neon"],
    },
}


def compile_all(folder: Path, triple: str) -> None:
    """Compile all libraries into ``folder``, for this machine or for a board."""
    from tvm_ffi import libinfo

    compiler = ["cc"] if triple == HOST else toolchain.find(triple).command()
    for name in ("session_faults", "testing"):
        source, library = Path(__file__).with_name(f"{name}.c"), folder / f"{name}.so"
        headers = f"-I{libinfo.find_include_path()}"
        subprocess.run([*compiler, "-shared", "-fPIC", headers, "-o", str(library), str(source)], check=True)
    _compile_addone(folder / "addone.so", triple)
    _compile_relax(folder / "relax.so", triple)
    _compile_dense(folder / "dense.so", triple)


def _export(program: Any, path: Path, triple: str) -> None:
    import tvm
    from tvm.support import cc

    options = {} if triple == HOST else {"fcompile": cc.cross_compiler(toolchain.find(triple).cxx)}
    tvm.compile(program, target=tvm.target.Target(TARGETS[triple])).export_library(str(path), **options)


def _compile_addone(path: Path, triple: str) -> None:
    import tvm
    from tvm import te

    x = te.placeholder((LENGTH,), "float32", name="x")
    y = te.compute((LENGTH,), lambda i: x[i] + 1.0, name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", "addone")
    _export(tvm.IRModule({"addone": function}), path, triple)


def _compile_relax(path: Path, triple: str) -> None:
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(relax_weights())))
            y = builder.emit_output(relax.op.nn.relu(product))
        builder.emit_func_output(y)
    _export(builder.get(), path, triple)


def _compile_dense(path: Path, triple: str) -> None:
    from tvm import relax, tirx

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 8), "float32"))
    w = relax.Var("w", relax.TensorType((8, 8), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, w))
            y = builder.emit_output(relax.Tuple([product, builder.emit(relax.op.nn.relu(product))]))
        builder.emit_func_output(y)
    _export(builder.get(), path, triple)


def compiled(shared: Path, triple: str = HOST) -> Artefacts:
    """The libraries for a target in ``shared``; the first process of the run that needs them compiles them.

    A separate process compiles: LLVM's threads and memory stay out of the tests' process.
    """
    folder = shared / f"artefacts-{triple}"
    folder.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            command = [sys.executable, "-m", "tests.live.artefacts", str(folder), triple]
            subprocess.run(command, check=True, cwd=ROOT, timeout=300)
            (folder / "done").touch()
    return Artefacts(folder)


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]), sys.argv[2])
