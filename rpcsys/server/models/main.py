"""The beginning of a model host: its module is loaded, the supervisor is told, and the threads start."""

from __future__ import annotations

import os
import resource
import socket
import sys
from typing import Any

from rpcsys.errors import RemoteArgumentError, RpcsysError, one_line
from rpcsys.module import loading
from rpcsys.module.module import Module, process
from rpcsys.server.capabilities import capabilities, installed
from rpcsys.server.models.call_queue import CallQueue
from rpcsys.server.models.calls import ModuleCalls
from rpcsys.server.models.host import WINDOW_CALLS, ModelHost
from rpcsys.server.sandbox import messages
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session import hello

#: Functions of a module that the supervisor is told of: it lists them.
LISTED = 20
#: While one thread computes in Python, another waits for its turn so long: the one that reads for all is to wait less.
SWITCH_S = 0.001


def serve(tether: socket.socket, job: Job) -> str:
    """Serve the module that ``job`` names; the outcome. Returns only where it cannot be loaded."""
    about = job.options["deployed"]
    # Each worker has its share of the CPUs: onnxruntime would start as many threads as there are for every call.
    process.threads = max(1, len(os.sched_getaffinity(0)) // about["workers"])
    try:
        module = load(about["path"], about["name"], allow_pickle=about["allow_pickle"])
        described = module.describe()
    except Exception as error:  # noqa: BLE001 - a library may do anything when it is loaded
        why = one_line(error) if isinstance(error, RpcsysError) else f"{type(error).__name__}: {one_line(error)}"
        messages.tell(tether, unloadable=why)
        return "closed"
    sys.setswitchinterval(SWITCH_S)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection is a descriptor
    messages.tell(tether, loaded={"kind": described["kind"], "functions": described["functions"][:LISTED]})
    tether.setblocking(False)
    queue = CallQueue(about["workers"], about["queue"], hello.memory() // 4, lambda client: not client.backlog)
    window_bytes = hello.window_bytes()
    names = ("name", "version", "sha256", "workers", "queue")
    serves = {**described, **{name: about[name] for name in names}}
    fields = hello.fields(job, capabilities(), WINDOW_CALLS, window_bytes, limit_s=None, **hello.board(), serve=serves)
    return ModelHost(ModuleCalls(module, window_bytes), queue, tether, fields, window_bytes).run()


def load(path: str, name: str, *, allow_pickle: bool) -> Module:
    """The module at ``path``, ``name`` in messages: an ONNX model by the reference evaluator where there is no onnxruntime.

    Raises what cannot be loaded does.
    """
    if path.endswith(".onnx") and not installed("onnxruntime"):
        return _by_reference(path)
    return loading.load_file(path, name, allow_pickle=allow_pickle)


def _by_reference(path: str) -> Module:
    from rpcsys.module.kinds import reference

    runner = reference.of_file(path)
    outputs = [value.name for value in runner.outputs]

    def main(*args: Any) -> Any:
        if len(args) != len(runner.inputs):
            raise RemoteArgumentError(f"the model takes {len(runner.inputs)} input(s), not {len(args)}")
        results = runner.run(outputs, {value.name: value.check(arg) for value, arg in zip(runner.inputs, args)})
        return results[0] if len(results) == 1 else tuple(results)

    described = [[value.describe() for value in values] for values in (runner.inputs, runner.outputs)]
    return Module("rpcsys.onnx", {"main": main}, inputs=described[0], outputs=described[1])
