"""rpcsys: lease a device by key, run a compiled model on it as if it were local, give it back clean.

    tracker = rpcsys.connect_tracker("10.0.0.1:9190")
    with tracker.request("rpi4") as session:
        model = session.load_module("model.onnx")
        y = model(x)

Names are imported at their first use: ``import rpcsys`` takes a bare board no time and needs only the standard
library.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpcsys import aio, client, errors, graph, lab, measure, module, server, tracing
    from rpcsys.client import connect, connect_tracker, empty, hold, inout
    from rpcsys.errors import RpcsysError

__version__ = "0.1.0"

__all__ = [
    "RpcsysError",
    "__version__",
    "aio",
    "client",
    "connect",
    "connect_tracker",
    "empty",
    "errors",
    "graph",
    "hold",
    "inout",
    "lab",
    "measure",
    "module",
    "server",
    "tracing",
]

_HOMES = {
    "RpcsysError": "rpcsys.errors",
    **dict.fromkeys(("connect", "connect_tracker", "empty", "hold", "inout"), "rpcsys.client"),
}
_PACKAGES = ("aio", "client", "errors", "graph", "lab", "measure", "module", "server", "tracing")
_HOST_ONLY = ("aio", "graph", "lab", "measure", "tracing")
_HOST_PYTHON, _DEVICE_PYTHON = (3, 10), (3, 8)

if sys.version_info < _DEVICE_PYTHON:
    raise ImportError(
        "rpcsys needs Python 3.8 or later, and this is {}.{}".format(*sys.version_info[:2]), name="rpcsys"
    )


# From 1.29 on, onnxruntime sends names and hashes of models to its maker, and leaves files in TMPDIR and in the home
# folder. It reads this variable when it is imported; daemons pass it on to sessions. A user's own value stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def need_host(package: str) -> None:
    """Raise ImportError, with the Python that ``package`` needs, where this one is too old for it.

    Each package that is no part of the device tier calls this first. `python -m` then prints one line.
    """
    if sys.version_info < _HOST_PYTHON:
        raise ImportError(
            "{} needs Python {}.{} or later; the device server and the client's core also run on this one "
            "({}.{})".format(package, *_HOST_PYTHON, *sys.version_info[:2]),
            name=package,
        )


def part(name: str) -> Any:
    """The module ``name`` of this package. Raises ImportError, with what to do, where the device runtime lacks it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(f"{name} is no part of the device runtime; type: python3 -m pip install rpcsys") from None


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name in _HOST_ONLY:
        need_host("rpcsys." + name)
    if name in _PACKAGES:
        return part("rpcsys." + name)
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module 'rpcsys' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
