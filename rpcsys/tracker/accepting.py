"""What a tracker does alike for its peers, whether it leads or not: it accepts them, and refuses some."""

from __future__ import annotations

import socket
from typing import Any, Protocol

from rpcsys.link.admission import Admission, plain
from rpcsys.link.tcp import tune
from rpcsys.tracker.connection import MAX_REFUSED, PeerConnection
from rpcsys.tracker.owner import Owner
from rpcsys.wire import tracker
from rpcsys.wire.control import Answer

Place = tuple[str, str]  # of a connection: the peer's address, and the tracker's to which it connected


class Accepting(Owner[PeerConnection], Protocol):
    """An owner of connections that accepts them. ``served``: the networks whose peers it serves."""

    served: Admission


def accept(owner: Accepting, sock: socket.socket, address: Any) -> None:
    """Admit or close a connection that has just been accepted."""
    tune(sock, bulk=False)
    try:
        place = plain(address[0]), plain(sock.getsockname()[0])
    except OSError:  # it has ended already
        sock.close()
    else:
        admit(owner, sock, place)


def admit(owner: Accepting, sock: socket.socket, place: Place) -> PeerConnection | None:
    """A new connection; None: it is closed, as its address has too many."""
    if owner.admission.admit(*place):
        try:
            return PeerConnection(owner, sock, *place, owner.served.refusal("tracker", *place))
        except OSError:  # the kernel cannot watch another descriptor
            owner.admission.leave(*place)
    sock.close()
    return None


def refuse(connection: PeerConnection, message: Any, error: str, why: str) -> None:
    """Tell a peer that is not served why; TVM's client shows it if the connection stays open."""
    number = getattr(message, "id", None)
    if number is not None:
        connection.send(Answer(number, False, error, why).to_json())
    elif isinstance(message, tracker.Ping) and message.hello is not None:
        connection.send({"ok": False, "error": error, "message": why})
    else:
        connection.send([tracker.FAIL, why])
    connection.refused += 1
    if connection.refused >= MAX_REFUSED:
        connection.drop("it goes on after it was refused", politely=True)
