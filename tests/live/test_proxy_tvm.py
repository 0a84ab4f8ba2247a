"""TVM's own scenarios through a proxy: its servers, its clients, its trackers, and ours in their places.

TVM's proxy proves each scenario; ours is measured by it.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.live.daemons import START_S, Daemons, wait_free, wait_until

tvm = pytest.importorskip("tvm")
rpc = pytest.importorskip("tvm.rpc")

pytestmark = pytest.mark.live

KEY = "lab:5:board"  # a key may hold colons
SCENARIO_S = 100.0
DUPLICATE = 0xFF272


@pytest.fixture(params=["tvm", "ours"])
def proxies(request: pytest.FixtureRequest, daemons: Daemons) -> Iterator[str]:
    """Whose proxy; the daemons are killed if the scenario does not end."""
    watchdog = threading.Timer(SCENARIO_S, daemons.stop)
    watchdog.start()
    yield request.param
    watchdog.cancel()


def works(session: Any) -> None:
    """The session runs functions and carries arrays."""
    assert session.get_function("rpc.test.addone")(41) == 42
    sent = np.arange(100_000, dtype="float32")
    assert (tvm.runtime.tensor(sent, session.cpu(0)).numpy() == sent).all()


def test_without_a_tracker(proxies: str, daemons: Daemons) -> None:
    proxy = daemons.proxy(flavour=proxies)
    daemons.behind(proxy, KEY)
    for _ in range(2):  # the server dials again when a session is over
        session = rpc.connect(*proxy.address, KEY)
        works(session)
        del session
        gc.collect()


@pytest.mark.parametrize("trackers", ["tvm", "ours"])
def test_with_a_tracker(proxies: str, trackers: str, daemons: Daemons) -> None:
    tracker = daemons.tracker(flavour=trackers)
    proxy = daemons.proxy("--tracker", tracker.where, flavour=proxies)
    daemons.behind(proxy, KEY)
    wait_free(tracker, KEY, 1, START_S)
    for _ in range(2):
        session = rpc.connect_tracker(*tracker.address).request(KEY)
        works(session)
        del session
        gc.collect()


def test_a_session_timeout(proxies: str, daemons: Daemons) -> None:
    proxy = daemons.proxy(flavour=proxies)
    daemons.behind(proxy, KEY)
    session = rpc.connect(*proxy.address, KEY, session_timeout=2)
    works(session)
    until_over(session.get_function("rpc.test.addone"))
    del session
    gc.collect()
    works(rpc.connect(*proxy.address, KEY))  # the server dials again


def until_over(addone: Any) -> None:
    """Call the function until the session is gone."""

    def is_over() -> bool:
        try:
            return addone(1) != 2
        except Exception:
            return True

    wait_until(is_over, 30, "the session is over", every_s=0.1)
