"""What sessions need, imported ahead of them: by a zygote for all that it will fork, or by each process for itself."""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any

from rpcsys.errors import NativeError
from rpcsys.ffi import library
from rpcsys.server.sandbox import messages, pages

SINGLE = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
"""Thread counts that libraries read when they are loaded."""

OWN = ("rpcsys.server.session.session", "rpcsys.server.session.tvm_session")
"""What every session runs, whatever else is imported ahead."""

PACKAGES = {"onnxruntime": "rpcsys.module.kinds.onnx", "tvm": "tvm.rpc.server"}
"""What sessions use of a package that is to be preloaded."""


def own(settings: dict[str, Any]) -> None:
    """Import what every session runs, and nothing heavy."""
    library.use(settings["tvm_library"])
    for name in OWN:
        importlib.import_module(name)


def everything(settings: dict[str, Any], teller: socket.socket) -> None:
    """Import and load what sessions will need, saying so before each import that a flag has asked for.

    Raises ImportError, with that flag in its text.
    """
    before = {name: os.environ.get(name) for name in SINGLE}
    os.environ.update(dict.fromkeys(SINGLE, "1"))
    try:
        own(settings)
        if settings["tvm"] == "ctypes":
            _load_runtime()
        for flag, names in (("--preload", settings["preload"]), ("--import", settings["imports"])):
            for name in names:
                messages.tell(teller, importing=f"{flag} {name}")
                _import(flag, name)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _load_runtime() -> None:
    """TVM's libraries: they start no thread until a session runs something."""
    importlib.import_module("rpcsys.server.session.tvm_ctypes")
    try:
        library.load_runtime()
    except NativeError as error:
        raise ImportError(f"--tvm ctypes: {error}") from error
    pages.release(("libtvm_", "libstdc++"))


def _import(flag: str, name: str) -> None:
    try:
        importlib.import_module(PACKAGES.get(name, name))
    except Exception as error:
        raise ImportError(f"{flag} {name}: {type(error).__name__}: {error}") from error
