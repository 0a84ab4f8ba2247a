"""TVM sessions through the installed ``tvm`` package: a session finds there all that TVM's own server registers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session import tvm_session

MODULE = "tvm.rpc.server"
"""What a zygote imports ahead for these sessions."""


def serve(sock: socket.socket, job: Job) -> str:
    """Serve a TVM session to its end, or tell the client of one that its time is over; the outcome."""
    return tvm_session.serve(sock, job, PackageRuntime())


class PackageRuntime:
    """TVM's runtime as its Python package has it."""

    def __init__(self) -> None:
        import tvm.rpc.server  # noqa: F401 - it registers what a TVM server has

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Put ``function`` in the place of whatever is registered as ``name``."""
        import tvm_ffi

        tvm_ffi.register_global_func(name, function, override=True)

    def call(self, name: str, *args: Any) -> Any:
        """Call the function registered as ``name``."""
        import tvm_ffi

        return tvm_ffi.get_global_func(name)(*args)

    def load_module(self, path: str) -> Any:
        """A module of the shared library at ``path``."""
        from tvm.runtime import load_module

        return load_module(path)
