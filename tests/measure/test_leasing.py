"""Leases of all boards of a key, or some."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rpcsys.client import connect_tracker
from rpcsys.client.tracker import Tracker
from rpcsys.errors import UnknownKey
from rpcsys.lab import Lab
from rpcsys.measure.leasing import leased, names, one_of_each

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def tracker() -> Iterator[Tracker]:
    with Lab({"cpu": 2}) as lab, connect_tracker(lab.tracker_address) as tracker:
        yield tracker


def test_all_boards_once_each(tracker: Tracker):
    with leased(tracker, "cpu", "all") as sessions:
        assert sorted(session.lease["server"] for session in sessions) == names(tracker, "cpu")
        assert len(sessions) == 2
    with leased(tracker, "cpu", "all", labels={"name": "cpu-0"}) as sessions:
        assert {session.lease["server"] for session in sessions} >= {"cpu-0"}


def test_some_boards(tracker: Tracker):
    with leased(tracker, "cpu") as sessions:
        assert len(one_of_each([*sessions, *sessions])) == 1
    with leased(tracker, "cpu", 2) as sessions:
        assert len(sessions) == 2


def test_no_board(tracker: Tracker):
    with pytest.raises(UnknownKey, match="no server of 'none' grants leases now"), leased(tracker, "none", "all"):
        pass
    with pytest.raises(UnknownKey, match="has these labels"), leased(tracker, "cpu", "all", labels={"arch": "none"}):
        pass
