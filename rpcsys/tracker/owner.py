"""What owns the connections of a tracker: its service, or a standby."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from rpcsys.daemon.sockets import Sockets
from rpcsys.tracker.peer_limit import PeerLimit
from rpcsys.tracker.views.metrics import FrameCounts

if TYPE_CHECKING:
    from rpcsys.tracker.strangers import LabOfPeers

Connection = TypeVar("Connection")


class Owner(Protocol[Connection]):
    """What a connection needs of its service."""

    @property
    def lab(self) -> LabOfPeers | None:
        """The lab that the tracker serves."""

    max_frame: int  # bytes of a frame of a known peer
    loop: asyncio.AbstractEventLoop
    sockets: Sockets
    admission: PeerLimit
    counts: FrameCounts
    open_connections: dict[Connection, None]
    heard: tuple[list[Connection], list[Connection]]  # clients, and servers, with frames to handle
    unsent: list[Connection]  # connections with bytes to send
    #: Takes bytes for a connection if they have to wait, until it calls `send_held`; whether it did. None: none wait.
    holds: Callable[[Connection, bytes], bool] | None

    def greeted(self, connection: Connection) -> int:
        """The peer has sent the magic; return the connection's number."""

    def encrypted(self, connection: Connection) -> None:
        """The peer begins TLS where no lab is served."""

    def received(self, connection: Connection, frame: bytes) -> None:
        """A frame has arrived."""

    def flush(self) -> None:
        """Send what is unsent on all connections."""

    def lost(self, connection: Connection) -> None:
        """The connection has ended."""
