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
_LOOP = "rpc.ServerLoop"
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
    prepare(runtime).workdir = job.workdir
    sock.sendall(job.reply)
    try:
        runtime.get(_LOOP)(sock.detach())  # it closes the descriptor
    except Exception as error:
        if _SOCKET_ERROR not in str(error):
            raise
        return "lost"
    return "closed"


class SessionFiles:
    """The functions that take file names, by the last part of their own. TVM's own server lacks ``listdir``.

    ``workdir``: the session's directory.
    """

    def __init__(self, load_module: Callable[[str], Any], workdir: str = os.curdir) -> None:
        self.workdir = workdir
        self._load = load_module
        self._mapped: set[str] = set()  # paths of loaded libraries

    def workpath(self, name: str) -> str:
        """The path for TVM's runtime, which writes an upload there or reads it."""
        path = confine(self.workdir, name)
        if path in self._mapped:
            self._mapped.remove(path)
            _leave_name_to_copy(path)
        return path

    def remove(self, name: str) -> None:
        """Remove a file, a link itself, or an empty folder. As TVM's own function, raises no OSError.

        An empty ``name``, which MetaSchedule sends after each measurement, removes nothing.
        """
        if not name:
            return
        path = confine(self.workdir, name, entry=True)
        self._mapped.discard(path)
        with contextlib.suppress(OSError):
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            else:
                os.unlink(path)

    def load_module(self, name: str) -> Any:
        """The module of a library, which may have to be linked first."""
        path = self._linked(name)
        self._mapped.add(path)
        return self._load(path)

    def listdir(self, name: str) -> str:
        """The names in a directory, sorted, with commas between them."""
        return ",".join(sorted(os.listdir(confine(self.workdir, name or "."))))

    def download_linked_module(self, name: str) -> bytearray:
        """The bytes of a library, which may have to be linked first."""
        with open(self._linked(name), "rb") as file:
            return bytearray(file.read())

    def _linked(self, name: str) -> str:
        path = confine(self.workdir, name)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"{name}: there is no such file in the session's directory; upload it first")
        return link(path)


@functools.lru_cache(maxsize=1)
def prepare(runtime: Runtime) -> SessionFiles:
    """Register the functions of all sessions of this process and its copies, once."""
    runtime.get(_LOOP)
    files = SessionFiles(runtime.load_module)
    for function in (files.workpath, files.remove, files.load_module, files.listdir, files.download_linked_module):
        runtime.register("tvm.rpc.server." + function.__name__, function)
    return files


def _leave_name_to_copy(path: str) -> None:
    """Give the name of a mapped file to a copy: writing to a mapped file ends the processes that use it.

    Without space for a copy the file keeps its name, so that it can be removed. The copy gets a free name: ext4 writes
    a file to the disk that replaces another one.
    """
    mapped = os.path.join(os.path.dirname(path), f".mapped-{os.getpid()}")
    with contextlib.suppress(OSError):
        os.rename(path, mapped)
        try:
            with open(mapped, "rb") as source, open(path, "xb") as target:
                while os.sendfile(target.fileno(), source.fileno(), None, _PIECE):
                    pass
            os.unlink(mapped)
        except OSError:
            os.replace(mapped, path)


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
