"""What a link is made to, and what is loaded for it."""

import subprocess
import sys

import pytest

from rpcsys.forward import config as forward_config
from rpcsys.gateway import config as gateway_config
from rpcsys.link.address import Addresses, tracker_text
from rpcsys.link.targets import open_link, shared
from rpcsys.link.trackers import LeaderLink, Trackers
from rpcsys.proxy import config as proxy_config
from rpcsys.server import config as server_config
from tests.link.fake_replicas import replicas

ALONE = """
import sys
from rpcsys.client.tracker import connect_tracker
from rpcsys.server.supervisor import tracker_link
connect_tracker(sys.argv[1]).close()
print([name for name in sys.modules if name.endswith((".trackers", ".replicas"))])
"""


def test_for_one_address_nothing_more_is_loaded():
    with replicas(1) as group:
        done = subprocess.run([sys.executable, "-c", ALONE, group.text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_links_of_one_owner_share_what_they_know():
    with replicas(2) as group:
        address = group.each[0].address
        assert shared(address) is address
        with open_link(address) as link:
            assert not isinstance(link, LeaderLink)
        known = shared(Addresses([one.address for one in group.each]))
        assert isinstance(known, Trackers)
        with open_link(known) as link:
            assert isinstance(link, LeaderLink)
        assert (known.leader, known.term) == (address, 1)
        known.close()


@pytest.mark.parametrize(
    "parse",
    [
        lambda text: server_config.parse(["--key", "k", "--tracker", text]),
        lambda text: proxy_config.parse(["--tracker", text]),
        lambda text: gateway_config.parse(["--tracker", text]),
        lambda text: forward_config.parse(["--tracker", text]),
    ],
)
def test_every_daemon_takes_a_list(parse):
    text = "lab-1:9190,lab-2:9191"
    assert tracker_text(parse(text).tracker) == text
    assert type(parse("lab-1:9190").tracker) is tuple
