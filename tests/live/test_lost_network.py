"""The network between a tracker and a board is cut without a notice to either."""

from __future__ import annotations

import sys
import time

import pytest

import rpcsys
from rpcsys.errors import SessionLost
from tests.live.daemons import Daemons, wait_until
from tests.live.networks import Networks

pytestmark = pytest.mark.slow

KEY = "board"


@pytest.fixture
def networks():
    with Networks() as made:
        yield made


def test_the_lease_ends_with_a_reason_and_the_board_returns(networks: Networks, daemons: Daemons):
    here, there = networks.namespace("lab"), networks.namespace("board")
    link = networks.link(here, there)

    def start(namespace, module, *flags):
        command = (sys.executable, "-m", module, "--port", "0", *flags)
        daemon = daemons.launch(module, namespace.inside(*command))
        daemon.await_ready_line()
        return daemon

    tracker = start(here, "rpcsys.tracker")
    address = (link.hosts[0], tracker.ready["port"])
    where = "{}:{}".format(*address)
    start(there, "rpcsys.server", "--key", KEY, "--name", "far", "--tracker", where, "--tvm", "off")
    with here.entered(), rpcsys.connect_tracker(address) as mine:
        session = mine.request(KEY, wait_for_key=True)
        echo = session.get_function("testing.echo")
        assert echo(1) == 1
        (lease,) = mine.leases()
        assert (lease["server"].partition(":")[0], lease["state"]) == ("far", "running")
        cut = time.monotonic()
        link.cut()
        with pytest.raises(SessionLost):
            echo(2)
        assert time.monotonic() - cut < 30  # 14 s by the socket's options
        wait_until(lambda: " over lease=" in tracker.stderr(), 60, "the lease to be over")
        assert mine.leases() == []
        (line,) = [line for line in tracker.stderr().splitlines() if " over lease=" in line]
        assert f"lease={lease['lease']}" in line
        assert "outcome=lost" in line
        assert f"its server {lease['server']} has been gone for 10 s" in line
        link.repair()
        with mine.request(KEY, wait_for_key=True, wait_timeout=60) as again:
            assert again.get_function("testing.echo")(3) == 3
