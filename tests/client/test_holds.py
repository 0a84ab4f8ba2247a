"""Holds on this desk, without a lab: errors of the holder's process, and the list of files."""

from __future__ import annotations

import json
import os
import socket

import pytest

from rpcsys import errors
from rpcsys.client import holds
from tests.client.test_attaching import ABOUT


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_errors_of_the_holder_are_those_of_a_request():
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        with pytest.raises(errors.TrackerUnreachable, match="no tracker at"):
            holds.hold("rpi4", tracker=port.getsockname())
    with pytest.raises(errors.ConfigError, match="no address"):
        holds.hold("rpi4", tracker="desk:99999")


def test_the_list_forgets_what_is_over_for_a_day():
    assert holds.all_holds() == []
    os.makedirs(holds.folder())
    for name, since in (("new", 9.0), ("older", 5.0), ("old", 1.0)):
        path = os.path.join(holds.folder(), name)
        with open(path, "w") as stream:
            json.dump({**ABOUT, "since": since}, stream)
        if name == "old":
            os.utime(path, (0, 0))
    assert [one.since for one in holds.all_holds()] == [5.0, 9.0]
    assert sorted(os.listdir(holds.folder())) == ["new", "older"]


def test_what_is_over_can_be_released():
    os.makedirs(holds.folder())
    path = os.path.join(holds.folder(), "one")
    with open(path, "w") as stream:
        json.dump(ABOUT, stream)
    assert "is gone" in holds.release(path).over
    assert not os.path.exists(path)
    with pytest.raises(errors.UsageError, match="was released"):
        holds.release(path)
