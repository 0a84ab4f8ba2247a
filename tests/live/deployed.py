"""Modules to deploy, and a way to deploy them before the server starts."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from rpcsys import module
from rpcsys.server.models.store import Store

FLAGS = ("--preload", "none", "--tvm", "off", "--allow-pickle", "--grace", "5")
WITH_NUMPY = ("--preload", "numpy", *FLAGS[2:])


def functions(factor: float) -> dict:
    """The functions of a deployed Python module. Its model host keeps the state."""
    state = {"calls": 0, "most": 0, "running": 0}

    def main(x):
        return np.asarray(x) * np.float32(factor)

    def nap(seconds):
        state["running"] += 1
        state["calls"] += 1
        state["most"] = max(state["most"], state["running"])
        time.sleep(seconds)
        state["running"] -= 1
        return factor

    def seen():
        return dict(state)

    def pid():
        from rpcsys.server.sandbox import processes

        return processes.number()

    def fail():
        raise KeyError("a function of the module")

    def keeps():
        return lambda: 1

    def babble(words):
        """Send ``words`` over each Unix socket of this process; the number of sockets."""
        count = 0
        for number in map(int, os.listdir("/proc/self/fd")):
            try:
                with socket.socket(fileno=os.dup(number)) as sock:
                    if sock.family == socket.AF_UNIX:
                        count += 1
                        sock.send(words)
            except OSError:
                continue
        return count

    return {"main": main, "nap": nap, "seen": seen, "pid": pid, "fail": fail, "keeps": keeps, "babble": babble}


def library(path: Path, factor: float) -> Path:
    """A library of :func:`functions`."""
    module.export_library(module.python(functions(factor)), path)
    return path


def onnx_model(path: Path, factor: float, size: int = 0) -> Path:
    """``y = x * factor + 0 * mean(w)``: x float32 of any length, w ``size`` random float32."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    weights = [helper.make_tensor("k", TensorProto.FLOAT, [], [factor])]
    nodes = [helper.make_node("Mul", ["x", "k"], ["y"])]
    if size:
        values = np.random.default_rng(0).standard_normal(size).astype("float32")
        weights.append(helper.make_tensor("w", TensorProto.FLOAT, [size], values.tobytes(), raw=True))
        weights.append(helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]))
        nodes = [
            helper.make_node("Mul", ["x", "k"], ["scaled"]),
            helper.make_node("ReduceMean", ["w"], ["mean"], keepdims=0),
            helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
            helper.make_node("Add", ["scaled", "nothing"], ["y"]),
        ]
    graph = helper.make_graph(nodes, "scale", [x], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, path)
    return path


def endless_model(path: Path) -> Path:
    """``y = n``, int64 scalars, computed by counting up to n: a loop in onnxruntime of any length."""
    scalar = helper.make_tensor_value_info
    one = helper.make_tensor("one", TensorProto.INT64, [], [1])
    body = helper.make_graph(
        [
            helper.make_node("Constant", [], ["one"], value=one),
            helper.make_node("Add", ["before", "one"], ["after"]),
            helper.make_node("Identity", ["on"], ["go_on"]),
        ],
        "body",
        [
            scalar("i", TensorProto.INT64, []),
            scalar("on", TensorProto.BOOL, []),
            scalar("before", TensorProto.INT64, []),
        ],
        [scalar("go_on", TensorProto.BOOL, []), scalar("after", TensorProto.INT64, [])],
    )
    zero = helper.make_tensor("zero", TensorProto.INT64, [], [0])
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "zero"], ["y"], body=body)],
        "count",
        [scalar("n", TensorProto.INT64, [])],
        [scalar("y", TensorProto.INT64, [])],
        [zero],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def put(root: Path, name: str, file: Path) -> str:
    """Deploy ``file`` into a folder that no server serves yet; its version."""
    store = Store(str(root))
    os.close(store.open())
    incoming = root / "incoming" / "file"
    shutil.copy(file, incoming)
    with store.replacing(name):
        digest = hashlib.sha256(incoming.read_bytes()).hexdigest()
        version = store.stage(name, str(incoming), file.name, digest)
        store.switch(version)
    return version.version
