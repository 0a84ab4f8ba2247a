"""A TVM session: what it is, whichever way TVM's runtime is reached.

The protocol is TVM's own, spoken by its runtime (``rpc.ServerLoop``). What stands here are the functions that know
files, so that the names a client sends stay inside the session's directory, and the session's end.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rpcsys.server.sandbox.messages import TVM_END, Job
from rpcsys.server.session.linking import link
from rpcsys.server.session.paths import confine

if TYPE_CHECKING:
    from typing import Protocol

    class Runtime(Protocol):
        """A way to TVM's runtime."""

        def register(self, name: str, function: Callable[..., Any]) -> None:
            """Put ``function`` in the place of whatever is registered as ``name``."""

        def call(self, name: str, *args: Any) -> Any:
            """Call the function registered as ``name``."""

        def load_module(self, path: str) -> Any:
            """A module of the shared library at ``path``, as a registered function returns it."""


def serve(sock: socket.socket, job: Job, runtime: Runtime) -> str:
    """Serve a TVM session to its end, or tell the client of one why it has ended; the outcome."""
    if job.kind == TVM_END:
        # A client that does not read would keep this waiting: the supervisor ends it after some seconds.
        runtime.call("rpc.ReturnException", sock.fileno(), job.words)
        return "ended"
    for name, function in functions(job.workdir, runtime.load_module).items():
        runtime.register("tvm.rpc.server." + name, function)
    for library in job.options.get("load_library", ()):
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    sock.sendall(job.reply)
    runtime.call("rpc.ServerLoop", sock.detach())  # it closes the descriptor
    return "closed"


def functions(workdir: str, load_module: Callable[[str], Any]) -> dict[str, Callable[..., Any]]:
    """The functions that know files, by the last part of their names.

    TVM's client calls ``listdir``, which TVM's own server lacks.
    """

    def workpath(name: str) -> str:
        # MetaSchedule ends a measurement with remove(""). A path that ends in a dot is the directory, and no
        # call removes it by that.
        if not name:
            return os.path.join(confine(workdir, "."), ".")
        confine(workdir, name)
        return confine(workdir, name, entry=True)  # what removes it removes a link, not what it leads to

    def load(name: str) -> Any:
        return load_module(link(_existing(workdir, name)))

    def listdir(name: str) -> str:
        return ",".join(sorted(os.listdir(confine(workdir, name or "."))))

    def download_linked(name: str) -> bytearray:
        with open(link(_existing(workdir, name)), "rb") as file:
            return bytearray(file.read())

    return {"workpath": workpath, "load_module": load, "listdir": listdir, "download_linked_module": download_linked}


def _existing(workdir: str, name: str) -> str:
    path = confine(workdir, name)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{name}: there is no such file in the session's directory; upload it first")
    return path
