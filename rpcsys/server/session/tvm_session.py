"""A TVM session. The protocol is TVM's own; its runtime serves it (``rpc.ServerLoop``).

The functions here take file names from a client, and keep them inside the session's directory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from typing import Any, Callable, NamedTuple

from rpcsys.ffi import library
from rpcsys.server.sandbox.messages import TVM_END, Job
from rpcsys.server.session.directory import confine

#: Any of them links; C++'s come first, because objects of C++ need its library. ``$CXX`` comes before all.
COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")
LINK_S = 120.0  # a linker that takes longer counts as hung
_PIECE = 1 << 30  # bytes that one system call copies at most
#: In the error that TVM's runtime raises for its socket, as for a reset; it raises none for a client that closes.
_SOCKET_ERROR = "SockChannel::"


class Runtime(NamedTuple):
    """Access to TVM's runtime."""

    register: Callable[[str, Callable[..., Any]], Any]  # registers a function, and replaces one of the same name
    get: Callable[[str], Callable[..., Any]]  # the function registered under a name
    load_module: Callable[[str], Any]  # the shared library at a path, as a registered function returns it


def package_runtime() -> Runtime:
    """TVM's runtime from the installed ``tvm`` package, with all that TVM's own server registers."""
    import tvm.rpc.server
    import tvm_ffi

    library.load_beside()
    register = functools.partial(tvm_ffi.register_global_func, override=True)
    load_module = tvm.runtime.load_module
    return Runtime(register, tvm_ffi.get_global_func, lambda path: load_module(library.to_open(path)))


def serve(sock: socket.socket, job: Job, runtime: Runtime) -> str:
    """Serve a TVM session or, for a job ``tvm-end``, send its client the reason for its end; return the outcome."""
    if job.kind == TVM_END:
        # Blocks if the client does not read: the supervisor ends this process after some seconds.
        runtime.get("rpc.ReturnException")(sock.fileno(), job.words)
        return "ended"
    _register(runtime, job.workdir)
    sock.sendall(job.reply)
    try:
        runtime.get("rpc.ServerLoop")(sock.detach())  # it closes the descriptor
    except Exception as error:
        if _SOCKET_ERROR not in str(error):
            raise
        return "lost"
    return "closed"


def rehearse(runtime: Runtime) -> None:
    """Do what a session does before its client's first call, in a process that waits for one. Leaves no state."""
    _register(runtime, os.curdir)


def _register(runtime: Runtime, workdir: str) -> None:
    for name, function in functions(workdir, runtime.load_module).items():
        runtime.register("tvm.rpc.server." + name, function)


def functions(workdir: str, load_module: Callable[[str], Any]) -> dict[str, Callable[..., Any]]:
    """The functions that take file names, by the last part of their own. TVM's own server lacks ``listdir``."""
    mapped: set[str] = set()  # paths of loaded libraries

    def workpath(name: str) -> str:
        if not name:  # MetaSchedule's remove("") after a measurement; no call removes a path that ends in a dot
            return os.path.join(confine(workdir, "."), ".")
        path = confine(workdir, name)
        if path in mapped:  # TVM's runtime writes an upload into the file of that name
            mapped.remove(path)
            _leave_name_to_copy(path)
        return confine(workdir, name, entry=True)  # so that a removal removes a link, not its target

    def linked(name: str) -> str:
        path = confine(workdir, name)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"{name}: there is no such file in the session's directory; upload it first")
        return link(path)

    def load(name: str) -> Any:
        path = linked(name)
        mapped.add(path)
        return load_module(path)

    def download_linked(name: str) -> bytearray:
        with open(linked(name), "rb") as file:
            return bytearray(file.read())

    return {
        "workpath": workpath,
        "load_module": load,
        "listdir": lambda name: ",".join(sorted(os.listdir(confine(workdir, name or ".")))),
        "download_linked_module": download_linked,
    }


def _leave_name_to_copy(path: str) -> None:
    """Give the name of a mapped file to a copy: writing to a mapped file ends the processes that use it.

    Without space for a copy the file keeps its name, so that it can be removed.
    """
    copy = os.path.join(os.path.dirname(path), f".copy-{os.getpid()}")
    try:
        with open(path, "rb") as source, open(copy, "wb") as target:
            while os.sendfile(target.fileno(), source.fileno(), None, _PIECE):
                pass
        os.replace(copy, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(copy)


def link(path: str) -> str:
    """Return the shared library of ``path``: itself, or one that the board's compiler links from an object or a tar.

    Raises ValueError for another kind of file, RuntimeError if there is no compiler or it fails.
    """
    name = os.path.basename(path)
    if path.endswith((".so", ".dylib")):
        return path
    if path.endswith(".o"):
        objects = [path]
    elif path.endswith(".tar"):
        objects = _unpack(path, path + ".unpacked")
    else:
        raise ValueError(f"{name}: only .o, .tar, .so and .dylib files can be linked")
    import shutil
    import subprocess

    wanted = [os.environ.get("CXX", ""), *COMPILERS]
    compiler = next((found for found in map(shutil.which, filter(None, wanted)) if found), None)
    if compiler is None:
        missing = f"{name} has to be linked, and this device has no compiler ({', '.join(COMPILERS)})"
        raise RuntimeError(f"{missing}; link it on the host and send the .so")
    command = [compiler, "-shared", "-fPIC", "-o", path + ".so", *objects]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LINK_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} cannot be linked: {' '.join(done.stderr.split())[-400:]}")
    return path + ".so"


def _unpack(path: str, folder: str) -> list[str]:
    """Unpack a tar's plain files into ``folder``, without the folders in their names; return their paths."""
    import shutil
    import tarfile

    os.makedirs(folder, exist_ok=True)
    unpacked: list[str] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                source = archive.extractfile(member) if member.isfile() else None
                if source is not None:
                    unpacked.append(os.path.join(folder, f"{len(unpacked)}-{os.path.basename(member.name)}"))
                    with open(unpacked[-1], "wb") as target:
                        shutil.copyfileobj(source, target)
    except tarfile.TarError as error:
        raise ValueError(f"{os.path.basename(path)} is no tar file: {error}") from None
    return unpacked
