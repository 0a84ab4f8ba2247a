"""TVM sessions through the installed ``tvm`` package.

Importing ``tvm.rpc.server`` registers everything a TVM server has. The functions of it that know files are
replaced here, so that names stay inside the session's directory, and ``listdir``, which TVM's client calls
and its server lacks, is added. The protocol itself is TVM's own: ``rpc.ServerLoop``.
"""

from __future__ import annotations

import ctypes
import os
import socket
from typing import Any

from rpcsys.server.job import TVM_TIMEOUT, Job
from rpcsys.server.paths import confine

MODULE = "tvm.rpc.server"
"""What a zygote imports ahead for these sessions."""


def serve(sock: socket.socket, job: Job) -> str:
    """Serve a TVM session to its end, or tell the client of one that its time is over; the outcome."""
    from tvm.rpc import _ffi_api

    if job.kind == TVM_TIMEOUT:
        # A client that does not read would keep this waiting: the supervisor ends it after some seconds.
        _ffi_api.ReturnException(sock.fileno(), timeout_message(job.limit_s or 0.0))
        return "timeout"
    _register(job.workdir)
    for library in job.options.get("load_library", ()):
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    sock.sendall(job.reply)
    _ffi_api.ServerLoop(sock.detach())  # it closes the descriptor
    return "closed"


def timeout_message(limit_s: float) -> str:
    """TVM's client raises the type that the message begins with."""
    return (
        f"RPCSessionTimeoutError: the session reached its time limit of {limit_s:g} s and was ended; "
        "ask for a longer session_timeout"
    )


def _register(workdir: str) -> None:
    """Put the functions that know files in the place of TVM's."""
    import tvm_ffi
    from tvm.runtime import load_module

    def workpath(name: str) -> str:
        return confine(workdir, name)

    def load(name: str) -> Any:
        return load_module(confine(workdir, name))

    def listdir(name: str) -> str:
        return ",".join(sorted(os.listdir(confine(workdir, name or "."))))

    def download_linked(name: str) -> bytearray:
        with open(link(confine(workdir, name)), "rb") as file:
            return bytearray(file.read())

    for name, function in [
        ("workpath", workpath),
        ("load_module", load),
        ("listdir", listdir),
        ("download_linked_module", download_linked),
    ]:
        tvm_ffi.register_global_func("tvm.rpc.server." + name, function, override=True)


def link(path: str) -> str:
    """The shared library made of ``path``: itself, or what the C++ compiler links of an object or a tar of them.

    Raises ValueError for another kind of file.
    """
    if path.endswith((".so", ".dylib")):
        return path
    from tvm.support import cc, tar, utils

    if path.endswith(".o"):
        objects = [path]
    elif path.endswith(".tar"):
        unpacked = utils.tempdir(custom_path=path + ".unpacked")
        tar.untar(path, unpacked.temp_dir)
        objects = [unpacked.relpath(name) for name in unpacked.listdir()]
    else:
        raise ValueError(f"{os.path.basename(path)}: only .o, .tar, .so and .dylib files can be linked")
    cc.create_shared(path + ".so", objects)
    return path + ".so"
