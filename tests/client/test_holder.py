"""The holder, beside a scripted board: what it says of older servers."""

from __future__ import annotations

import pytest

from rpcsys.client import connection
from rpcsys.client.holder import HoldingTracker
from rpcsys.errors import NotSupported


class OlderSession:
    """A session with a server that knows no holds."""

    def __init__(self) -> None:
        self.info: dict = {"capabilities": {}}
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_an_older_server_is_named_and_left(monkeypatch):
    session, asked = OlderSession(), []
    monkeypatch.setattr(connection, "open_session", lambda *where, **more: asked.append(more) or session)
    tracker = HoldingTracker(("127.0.0.1", 9190), "ann", 1.0)
    lease = {"host": "10.0.0.7", "port": 9090, "matchkey": "rpi4:5c", "server": "desk-7"}
    with pytest.raises(NotSupported, match=r"desk-7 cannot be held: .* type: rpcsys board upgrade desk-7"):
        tracker._open_session(lease, 5.0)
    assert session.closed
    assert asked == [{"session_timeout": 5.0, "lease": lease, "hold": True}]
