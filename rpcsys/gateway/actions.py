"""What a gateway's state wants done; `rpcsys.gateway.backend` carries it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rpcsys.gateway.calls import Outcome
from rpcsys.gateway.settings import LeasedPool
from rpcsys.wire.frames import FrameTemplate


class ReplicaPlace(NamedTuple):
    """Where a deployed module is served. ``key``: what the server, or a proxy before it, is told; "" for nothing."""

    host: str
    port: int
    key: str = ""


class ConnectReplica(NamedTuple):
    """Open the connection ``replica`` to the model at ``place``, beside the loop; `opened` or `lost` follows."""

    replica: int
    model: str
    place: ReplicaPlace


class CloseReplica(NamedTuple):
    """Close the connection ``replica``, on which nothing is under way. No `lost` follows."""

    replica: int


class SendCall(NamedTuple):
    """Send a CALL over ``replica``. ``deadline_ms``: 0 for none."""

    replica: int
    call_id: int
    template: FrameTemplate
    buffers: Sequence[Any]
    deadline_ms: int = 0


class CancelCall(NamedTuple):
    """Send a CANCEL. The answer to the call still comes."""

    replica: int
    call_id: int


class FinishCall(NamedTuple):
    """Tell a client the outcome of its call."""

    done: Callable[[Outcome], None]
    outcome: Outcome


class LeaseDevice(NamedTuple):
    """Lease a device for ``pool``, and load its file there: ``replica``; `opened` or `lost` follows."""

    replica: int
    model: str
    pool: LeasedPool


class GiveBackDevice(NamedTuple):
    """End the leased session ``replica``, and with it the lease. No `lost` follows."""

    replica: int


Action = ConnectReplica | CloseReplica | SendCall | CancelCall | FinishCall | LeaseDevice | GiveBackDevice
