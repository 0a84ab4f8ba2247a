"""TVM sessions without the ``tvm`` package: libtvm_ffi and libtvm_runtime through ctypes, and nothing else.

What is registered is what these libraries register, what those of ``--load-library`` do, a session's own, and
what tuners ask for before they measure (`rpcsys.server.session.filling`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from rpcsys.ffi import calls, library, tvm
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session import filling, tvm_session


def serve(sock: socket.socket, job: Job) -> str:
    """Serve a TVM session to its end, or tell the client of one that its time is over; the outcome."""
    return tvm_session.serve(sock, job, LibraryRuntime())


class LibraryRuntime:
    """TVM's runtime as its libraries have it. Raises `NativeError`."""

    def __init__(self) -> None:
        library.load_runtime()
        for name in filling.NAMES:
            if calls.find_global(name) is None:
                self.register(name, filling.fill)

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Put ``function`` in the place of whatever is registered as ``name``."""
        calls.register(name, function)

    def call(self, name: str, *args: Any) -> Any:
        """Call the function registered as ``name``."""
        return calls.get_global(name)(*args)

    def load_module(self, path: str) -> Any:
        """A module of the shared library at ``path``."""
        return tvm.load_module(path).object
