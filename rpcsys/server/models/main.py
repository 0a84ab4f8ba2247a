"""The beginning of a model host: its module is loaded, the supervisor is told, and the threads start."""

from __future__ import annotations

import os
import resource
import socket
import sys
from typing import Any, Dict

from rpcsys.errors import RemoteArgumentError, RpcsysError, one_line
from rpcsys.module import loading
from rpcsys.module.module import Module, process
from rpcsys.server import capabilities
from rpcsys.server.capabilities import installed
from rpcsys.server.models.call_queue import Desk
from rpcsys.server.models.calls import Calls
from rpcsys.server.models.host import WINDOW_CALLS, Host
from rpcsys.server.sandbox import messages, processes
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session.session import VERSION, _memory, _window_bytes

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
    _allow_descriptors()
    told = {"kind": described["kind"], "functions": described["functions"][:LISTED]}
    messages.tell(tether, loaded=told)
    tether.setblocking(False)
    desk = Desk(about["workers"], about["queue"], _memory() // 4, lambda line: not line.backlog)
    window_bytes = _window_bytes()
    calls = Calls(module, window_bytes)
    host = Host(calls, desk, tether, _hello(job, described, about), window_bytes)
    return host.run()


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


def _allow_descriptors() -> None:
    """Take as many connections as the system lets this process have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _hello(job: Job, described: Dict[str, Any], about: Dict[str, Any]) -> Dict[str, Any]:
    names = ("name", "version", "sha256", "workers", "queue")
    return {
        "version": VERSION,
        "key": job.key,
        "pid": processes.number(),
        "limit_s": None,
        "capabilities": capabilities.capabilities(pickle=False, cache=False),
        "machine": capabilities.machine(),
        "devices": ["cpu:0"],
        "window": {"calls": WINDOW_CALLS, "bytes": _window_bytes()},
        "serve": {**described, **{name: about[name] for name in names}},
    }
