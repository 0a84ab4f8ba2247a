"""The client: lease a device, open a session, call its functions.

The core needs only the standard library (Python 3.8 and later). Arrays are numpy arrays where numpy is installed, else
`Tensor`. Queries of a tracker do not import numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpcsys.client.arrays import empty, inout
    from rpcsys.client.connection import connect
    from rpcsys.client.holds import Hold, hold
    from rpcsys.client.remote import RemoteArray, RemoteFunction, RemoteModule
    from rpcsys.client.session import ServedModule, Session
    from rpcsys.client.timing import TimingResult
    from rpcsys.client.tracker import Tracker, connect_tracker
    from rpcsys.wire.tensor import Tensor

__all__ = [
    "Hold",
    "RemoteArray",
    "RemoteFunction",
    "RemoteModule",
    "ServedModule",
    "Session",
    "Tensor",
    "TimingResult",
    "Tracker",
    "connect",
    "connect_tracker",
    "empty",
    "hold",
    "inout",
]

_HOMES = {
    "rpcsys.client.arrays": ("empty", "inout"),
    "rpcsys.client.connection": ("connect",),
    "rpcsys.client.holds": ("Hold", "hold"),
    "rpcsys.client.remote": ("RemoteArray", "RemoteFunction", "RemoteModule"),
    "rpcsys.client.timing": ("TimingResult",),
    "rpcsys.client.session": ("ServedModule", "Session"),
    "rpcsys.client.tracker": ("Tracker", "connect_tracker"),
    "rpcsys.wire.tensor": ("Tensor",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module 'rpcsys.client' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
