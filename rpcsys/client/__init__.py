"""The client: lease a device, open a session, call what is on it.

The core runs on the standard library alone (Python 3.8 and later); arrays come as `Tensor` then, and
as numpy arrays where numpy is installed.
"""

from rpcsys.client.arrays import empty, inout
from rpcsys.client.connect import connect
from rpcsys.client.remote import RemoteArray, RemoteFunction, RemoteModule
from rpcsys.client.session import ServedModule, Session
from rpcsys.client.timing import TimingResult
from rpcsys.client.tracker import Tracker, connect_tracker
from rpcsys.wire.tensor import Tensor

__all__ = [
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
    "inout",
]
