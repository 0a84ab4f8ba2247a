"""A member is revoked while its sessions run: each ends within 2 seconds, and its board is free for others."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rpcsys
from rpcsys import errors
from rpcsys.client.listings import whole_summary
from rpcsys.link import credential
from rpcsys.link.link import Link
from tests.live.daemons import START_S, Daemons, wait_free, wait_until
from tests.live.lab_site import KEEPER, LabSite

KEY = "rpi4"
ENDS_S = 2.0


class Repeated(threading.Thread):
    """Does something until it fails; ``error`` and ``at`` (of the monotonic clock) say how and when."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.done, self.at, self.error = 0, 0.0, ""
        self._action = action
        self.start()

    def run(self) -> None:
        while not self.error:
            try:
                self._action()
                self.done += 1
            except Exception as error:
                self.error, self.at = f"{type(error).__name__}: {error}", time.monotonic()
            time.sleep(0.02)


@pytest.fixture
def bo(site: LabSite, tmp_path: Path, daemons: Daemons) -> Iterator[LabSite]:
    """A lab with a board of two slots; this process is bo's."""
    own = tmp_path / "board.json"
    site.run(KEEPER, "lab", "enrol", "--board", "board", "--key", KEY, "--out", str(own))
    daemons.server(KEY, "--lab", str(own), "--slots", "2", tracker=site.tracker, offers=2)
    site.join("bo")
    credential.use(str(site.place("bo")))
    yield site
    credential.use_no_more(str(site.place("bo")))


def revoked_beside(site: LabSite, *working: Repeated) -> None:
    """Revoke bo, whose sessions work; AssertionError if one of them goes on."""
    wait_until(lambda: all(each.done or each.error for each in working), START_S, "all work")
    assert [each.error for each in working] == [""] * len(working)
    with Link.open(("127.0.0.1", site.port), credential=site.credential(KEEPER)) as keeper:
        revoked_at = time.monotonic()
        keeper.ask("revoke", timeout=20, name="bo")
    for each in working:
        each.join(START_S)
        assert 0 < each.at - revoked_at < ENDS_S, each.error
    wait_free(site.tracker, KEY, 2, START_S)


def test_its_sessions_end_and_say_why(bo: LabSite) -> None:
    with rpcsys.connect_tracker(bo.where) as desk:
        calls = [desk.request(KEY).get_function("testing.echo") for _ in range(2)]
        working = [Repeated(functools.partial(call, 1)) for call in calls]
        revoked_beside(bo, *working)
        assert [each.error for each in working] == [
            "SessionLost: the session is over: the membership of bo has ended"
        ] * 2
        with pytest.raises(errors.Unauthorized, match="revoked"):
            desk.request(KEY)


def test_tvms_session_behind_connect_ends(bo: LabSite, daemons: Daemons) -> None:
    rpc = pytest.importorskip("tvm.rpc")
    desk = daemons.desk(bo.tracker, bo.environment("bo"))
    remote = rpc.connect_tracker(*desk.address).request(KEY)
    revoked_beside(bo, Repeated(lambda: remote.upload(bytearray(b"x"), "file")))


def test_one_that_waits_in_the_queue_is_told(bo: LabSite) -> None:
    with rpcsys.connect_tracker(bo.where) as desk:
        waits = Repeated(lambda: desk.request("none", wait_for_key=True, wait_timeout=START_S))
        with Link.open(("127.0.0.1", bo.port), credential=bo.credential(KEEPER)) as keeper:
            wait_until(lambda: whole_summary(keeper)["queue_info"].get("none"), START_S, "it waits")
            revoked_at = time.monotonic()
            keeper.ask("revoke", timeout=20, name="bo")
        waits.join(START_S)
        assert 0 < waits.at - revoked_at < ENDS_S
        assert "Unauthorized" in waits.error
