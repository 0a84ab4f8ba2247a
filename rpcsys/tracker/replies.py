"""The final answers to questions of our clients and servers."""

from __future__ import annotations

from typing import Any

from rpcsys.tracker.entities import Peer
from rpcsys.tracker.events import Send
from rpcsys.wire.control import Answer


def done(peer: Peer, asked: int, **fields: Any) -> Send:
    """The final answer to what was asked."""
    return Send(peer.conn, Answer(asked, True, fields=fields).to_json())


def refusal(peer: Peer, asked: int, error: str, message: str) -> Send:
    """The final answer to what cannot be."""
    return Send(peer.conn, Answer(asked, False, error, message).to_json())
