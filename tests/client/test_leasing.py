from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from rpcsys.client import leasing
from rpcsys.client.waiting import Wanted
from rpcsys.errors import NoTls
from rpcsys.wire import pinned_keys

WANTED = Wanted("rpi4", {}, 1, 1, None, False)


class FakeTracker:
    """Has one link, and says which leases come over it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, matchkey: str) -> None:
        self._idle: list[Any] = []
        self.closed = False
        link = SimpleNamespace(close=lambda: setattr(self, "closed", True))
        lease = {"host": "10.0.0.7", "port": 9090, "matchkey": matchkey}
        monkeypatch.setattr(leasing, "wait", lambda link, *_: (link, [lease]))
        self._take = lambda: link
        self._watcher = contextlib.nullcontext
        self._open = None


def test_the_body_opens_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker: Any = FakeTracker(monkeypatch, "rpi4:0123")
    with leasing.unopened(tracker, WANTED, 5.0) as lease:
        assert lease["port"] == 9090
        assert tracker._idle == []  # nobody else's question comes between
    assert len(tracker._idle) == 1
    assert not tracker.closed


def test_an_error_gives_the_device_back(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker: Any = FakeTracker(monkeypatch, "rpi4:0123")
    with pytest.raises(KeyboardInterrupt), leasing.unopened(tracker, WANTED, 5.0):
        raise KeyboardInterrupt
    assert tracker.closed
    assert tracker._idle == []


def test_an_encrypted_session_is_no_other_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = SimpleNamespace(secret="s" * 32)
    monkeypatch.setattr(pinned_keys, "parse", lambda key: secret)
    tracker: Any = FakeTracker(monkeypatch, "rpi4:0123")
    with pytest.raises(NoTls, match="type: rpcsys connect"), leasing.unopened(tracker, WANTED, 5.0):
        pass
    assert tracker.closed
