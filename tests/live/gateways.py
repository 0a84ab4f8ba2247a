"""Models that inference clients call, a server that has them, and a gateway before it."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from rpcsys import module
from tests.live import deployed
from tests.live.daemons import START_S, Daemon, Daemons, wait_until

#: The protocol's datatypes that numpy has, too, and ONNX's.
DATATYPES = {
    "BOOL": ("bool", TensorProto.BOOL),
    "UINT8": ("uint8", TensorProto.UINT8),
    "UINT16": ("uint16", TensorProto.UINT16),
    "UINT32": ("uint32", TensorProto.UINT32),
    "UINT64": ("uint64", TensorProto.UINT64),
    "INT8": ("int8", TensorProto.INT8),
    "INT16": ("int16", TensorProto.INT16),
    "INT32": ("int32", TensorProto.INT32),
    "INT64": ("int64", TensorProto.INT64),
    "FP16": ("float16", TensorProto.FLOAT16),
    "FP32": ("float32", TensorProto.FLOAT),
    "FP64": ("float64", TensorProto.DOUBLE),
    "BYTES": ("object", TensorProto.STRING),
}
MODULES = ("simple", "every", "bf16", "fp32", "nap", "fail", "endless")
CLIENTS = ("http", "http.aio", "grpc", "grpc.aio")


def save(path: Path, nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any]) -> Path:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def simple(path: Path) -> Path:
    """The model of NVIDIA's examples: OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1, INT32 [-1, 16]."""
    value = helper.make_tensor_value_info
    names = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    values = [value(name, TensorProto.INT32, ["n", 16]) for name in names]
    nodes = [helper.make_node("Add", names[:2], ["OUTPUT0"]), helper.make_node("Sub", names[:2], ["OUTPUT1"])]
    return save(path, nodes, values[:2], values[2:])


def identity(path: Path, datatypes: Iterable[str]) -> Path:
    """For each datatype D an input ``D`` and an output ``same_D`` that is equal to it, of any length."""
    types = {name: TensorProto.BFLOAT16 if name == "BF16" else DATATYPES[name][1] for name in datatypes}
    nodes = [helper.make_node("Identity", [name], [f"same_{name}"]) for name in types]
    inputs = [helper.make_tensor_value_info(name, kind, [f"n{name}"]) for name, kind in types.items()]
    outputs = [helper.make_tensor_value_info(f"same_{name}", kind, [f"n{name}"]) for name, kind in types.items()]
    return save(path, nodes, inputs, outputs)


def function(path: Path, called: Any) -> Path:
    """A library whose ``main`` takes ``x``, float32 of any length, and gives ``y`` of its kind."""
    row = {"dtype": "float32", "shape": ["n"]}
    stage = module.Stage("main", module.python({"main": called}), ["x"], ["y"])
    module.export_library(module.graph([stage], [{"name": "x", **row}], [{"name": "y", **row}]), path)
    return path


def sleeping(path: Path) -> Path:
    """Sleeps for the largest of ``x`` seconds."""

    def nap(x: Any) -> Any:
        import time

        time.sleep(float(x.max()))
        return x

    return function(path, nap)


def failing(path: Path) -> Path:
    def fail(x: Any) -> Any:
        raise KeyError(f"a function of the module, {x.shape}")

    return function(path, fail)


def deploy_all(root: Path, folder: Path) -> None:
    """Deploy `MODULES`; every has each datatype."""
    every = list(DATATYPES)
    files = {
        "simple": simple(folder / "simple.onnx"),
        "every": identity(folder / "every.onnx", every),
        "bf16": identity(folder / "bf16.onnx", ["BF16"]),
        "fp32": identity(folder / "fp32.onnx", ["FP32"]),
        "nap": sleeping(folder / "nap.so"),
        "fail": failing(folder / "fail.so"),
        "endless": deployed.endless_model(folder / "endless.onnx"),
    }
    for name, file in files.items():
        deployed.put(root, name, file)


def sample(datatype: str) -> np.ndarray:
    """Values of a datatype, the least and the largest among them."""
    dtype = DATATYPES[datatype][0]
    if datatype == "BYTES":
        return np.array(["", "a", "äöü €", "x" * 1000, "\0nul"], dtype=object)
    if datatype == "BOOL":
        return np.array([True, False, True])
    limits = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    return np.array([limits.min, limits.max, 0, 1, 3], dtype=dtype)


def texts(array: np.ndarray) -> list[str]:
    """The strings of an array of BYTES: some clients give them as bytes, others as text."""
    return [value.decode() if isinstance(value, bytes) else value for value in array.flat]


class Served:
    """A server with all models, and a gateway before it."""

    def __init__(self, daemons: Daemons, folder: Path, *flags: str, server_flags: tuple[str, ...] = ()) -> None:
        root = folder / "deploy"
        deploy_all(root, folder)
        common = (*deployed.WITH_NUMPY, "--deploy", str(root), "--deploy-workers", "2")
        self.server = daemons.server("edge", *common, *server_flags)
        self.gateway = before(daemons, self.server, MODULES, *flags)

    @property
    def http(self) -> str:
        return self.gateway.where

    @property
    def grpc(self) -> str:
        return grpc_of(self.gateway)


def before(daemons: Daemons, server: Daemon, modules: Sequence[str], *flags: str) -> Daemon:
    """A gateway before a server, ready: it serves these modules of it, and no others."""
    names = [f"--module={name}" for name in modules]
    gateway = daemons.gateway("--server", server.where, *names, *flags)
    wait_ready(gateway)
    return gateway


def wait_ready(gateway: Daemon) -> None:
    """Wait until it serves the modules that it is to serve."""

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://{gateway.where}/v2/health/ready", timeout=START_S) as answer:
                return answer.status == 200
        except urllib.error.HTTPError:
            return False

    wait_until(ready, START_S, "the gateway has found its modules")


def grpc_of(gateway: Daemon) -> str:
    return f"127.0.0.1:{gateway.ready['grpc_port']}"


class Triton:
    """One of tritonclient's clients (`CLIENTS`), used by one thread: those with coroutines are run to their end."""

    def __init__(self, kind: str, gateway: Daemon) -> None:
        self.kind = kind
        self.library = importlib.import_module(f"tritonclient.{kind.partition('.')[0]}")
        package = importlib.import_module(f"tritonclient.{kind}")
        self._loop = asyncio.new_event_loop()
        where = gateway.where if self.http else grpc_of(gateway)

        async def made() -> Any:
            return package.InferenceServerClient(where)

        self.client = (
            self._loop.run_until_complete(made()) if self.asynchronous else package.InferenceServerClient(where)
        )

    @property
    def http(self) -> bool:
        return self.kind.startswith("http")

    @property
    def asynchronous(self) -> bool:
        return self.kind.endswith("aio")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(*arguments: Any, **named: Any) -> Any:
            answer = method(*arguments, **named)
            return self._loop.run_until_complete(answer) if inspect.isawaitable(answer) else answer

        return call

    def json(self, method: str, *arguments: Any, **named: Any) -> Any:
        """An answer as JSON: gRPC's has whole numbers of 64 bits as text."""
        return getattr(self, method)(*arguments, **named, **({} if self.http else {"as_json": True}))

    def inputs(self, arrays: dict[str, tuple[str, np.ndarray]], binary: bool = True) -> list[Any]:
        """Inputs by name: a datatype and an array."""
        made = []
        for name, (datatype, array) in arrays.items():
            made.append(self.library.InferInput(name, list(array.shape), datatype))
            made[-1].set_data_from_numpy(array, **({"binary_data": binary} if self.http else {}))
        return made

    def outputs(self, names: Iterable[str], binary: bool = True, **more: Any) -> list[Any]:
        given = {"binary_data": binary} if self.http else {}
        return [self.library.InferRequestedOutput(name, **given, **more) for name in names]

    def close(self) -> None:
        if self.asynchronous:
            self._loop.run_until_complete(self.client.close())
        else:
            self.client.close()
        self._loop.close()


def numbers(*, rows: int = 1) -> dict[str, tuple[str, np.ndarray]]:
    """Inputs of `simple`."""
    first = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
    return {"INPUT0": ("INT32", first), "INPUT1": ("INT32", np.ones_like(first))}
