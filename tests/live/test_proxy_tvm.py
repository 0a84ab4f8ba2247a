"""TVM's scenarios through a proxy: with TVM's servers and clients, and with TVM's trackers or ours.

TVM's proxy proves each scenario; our proxy must give the same results.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.live.daemons import START_S, Daemons, free_port, wait_free, wait_until
from tests.live.ways import every_way

tvm = pytest.importorskip("tvm")
rpc = pytest.importorskip("tvm.rpc")

KEY = "lab:5:board"  # a key may hold colons
SCENARIO_S = 100.0


@pytest.fixture(params=[pytest.param("tvm", marks=pytest.mark.slow), "ours"])
def proxies(request: pytest.FixtureRequest, daemons: Daemons) -> Iterator[str]:
    """The proxy's flavour; the daemons are stopped if the scenario does not end."""
    watchdog = threading.Timer(SCENARIO_S, daemons.stop)
    watchdog.start()
    yield request.param
    watchdog.cancel()


def works(session: Any) -> None:
    """Check that the session runs functions and transfers arrays."""
    assert session.get_function("rpc.test.addone")(41) == 42
    sent = np.arange(100_000, dtype="float32")
    assert (tvm.runtime.tensor(sent, session.cpu(0)).numpy() == sent).all()


def test_a_session_without_a_tracker(proxies: str, daemons: Daemons) -> None:
    proxy = daemons.proxy(flavour=proxies)
    daemons.behind(proxy, KEY)
    for _ in range(2):  # the server reconnects when a session is over
        session = rpc.connect(*proxy.address, KEY)
        works(session)
        del session
        gc.collect()


@every_way
@pytest.mark.parametrize("trackers", ["tvm", "ours"])
def test_a_session_with_a_tracker(proxies: str, trackers: str, daemons: Daemons) -> None:
    tracker = daemons.tracker(flavour=trackers)
    proxy = daemons.proxy("--tracker", tracker.where, flavour=proxies)
    daemons.behind(proxy, KEY)
    wait_free(tracker, KEY, 1, START_S)
    for _ in range(2):
        session = rpc.connect_tracker(*tracker.address).request(KEY)
        works(session)
        del session
        gc.collect()


def test_a_session_over_its_limit_ends(proxies: str, daemons: Daemons) -> None:
    proxy = daemons.proxy(flavour=proxies)
    daemons.behind(proxy, KEY)
    session = rpc.connect(*proxy.address, KEY, session_timeout=2)
    works(session)
    until_over(session.get_function("rpc.test.addone"))
    del session
    gc.collect()
    works(rpc.connect(*proxy.address, KEY))  # the server reconnects


def until_over(addone: Any) -> None:
    """Call the function until the session is gone."""

    def is_over() -> bool:
        try:
            return addone(1) != 2
        except Exception:
            return True

    wait_until(is_over, 30, "the session is over", every_s=0.1)


# --- WebSockets --------------------------------------------------------------------------------

WEBSOCKET_SERVER = """
import sys
from tvm.rpc.proxy import websocket_proxy_server
websocket_proxy_server(sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize("trackers", ["none", pytest.param("ours", marks=pytest.mark.slow)])
def test_tvms_websocket_server_serves_a_session(proxies: str, trackers: str, daemons: Daemons) -> None:
    """It serves one session, to a TCP client."""
    web_port = free_port()
    flags = ["--web-port", str(web_port)]
    tracker = None
    if trackers == "ours":
        tracker = daemons.tracker()
        flags += ["--tracker", tracker.where]
    proxy = daemons.proxy(*flags, flavour=proxies)
    url = f"ws://127.0.0.1:{web_port}/ws"
    server = daemons.launch("websocket", [sys.executable, "-c", WEBSOCKET_SERVER, url, KEY])
    if tracker is None:
        session = rpc.connect(*proxy.address, KEY)
    else:
        wait_free(tracker, KEY, 1, START_S)
        session = rpc.connect_tracker(*tracker.address).request(KEY)
    works(session)
    large = np.random.default_rng(5).random(1_500_000, "float32")
    assert (tvm.runtime.tensor(large, session.cpu(0)).numpy() == large).all()
    del session
    gc.collect()
    wait_until(lambda: not server.running(), 20, "the server ends")


# --- faults ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tvms_server_reconnects_to_a_restarted_proxy(daemons: Daemons) -> None:
    """TVM's server tries five times, 5 s apart."""
    proxy = daemons.proxy()
    daemons.behind(proxy, KEY)
    session = rpc.connect(*proxy.address, KEY)
    addone = session.get_function("rpc.test.addone")
    proxy.kill()
    until_over(addone)
    del session, addone
    gc.collect()
    again = daemons.proxy(port=proxy.address[1])
    works(rpc.connect(*again.address, KEY))
