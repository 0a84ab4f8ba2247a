"""A user of TVM's unmodified client, in whichever release of TVM runs this file: one session with everything in it.

``python -I tvm_release_client.py compile PATH`` compiles ``addone`` with LLVM into a library.
``python -I tvm_release_client.py use PATH HOST PORT KEY`` leases a device and uses that library there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import tvm
from tvm import rpc

LENGTH = 1024
BYTES = bytes(range(256)) * 4096


def compile_addone(path: Path) -> None:
    from tvm import te

    x = te.placeholder((LENGTH,), "float32", name="x")
    y = te.compute((LENGTH,), lambda i: x[i] + 1.0, name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", "addone")
    tvm.compile(tvm.IRModule({"addone": function}), target="llvm").export_library(str(path))


def use(path: Path, host: str, port: str, key: str) -> None:
    tracker = rpc.connect_tracker(host, int(port))
    assert key in tracker.summary()["queue_info"], tracker.summary()
    assert key in tracker.text_summary()
    remote = tracker.request(key, priority=1, session_timeout=60)
    remote.upload(str(path))
    remote.upload(bytearray(BYTES), "some.bin")
    assert bytes(remote.download("some.bin")) == BYTES
    remote.remove("some.bin")
    device = remote.cpu(0)
    x = tvm.runtime.tensor(np.arange(LENGTH, dtype="float32"), device)
    y = tvm.runtime.tensor(np.zeros(LENGTH, "float32"), device)
    library = remote.load_module(path.name)
    library["addone"](x, y)
    assert (y.numpy() == np.arange(LENGTH) + 1).all()
    timed = library.time_evaluator("addone", device, number=5, repeat=2)(x, y)
    assert len(timed.results) == 2
    assert all(0 < seconds < 1 for seconds in timed.results)
    try:
        remote.get_function("no.such.function")
    except AttributeError:
        pass
    else:
        raise AssertionError("a function that does not exist was found")
    assert (y.numpy() == np.arange(LENGTH) + 1).all()  # the session goes on
    query = [sys.executable, "-I", "-m", "tvm.exec.query_rpc_tracker", "--host", host, "--port", port]
    assert key in subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    print("used", tvm.__version__)


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        compile_addone(Path(sys.argv[2]))
    else:
        use(Path(sys.argv[2]), *sys.argv[3:])
