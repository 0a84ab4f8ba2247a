from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rpcsys.errors import RpcsysError
from rpcsys.local_daemons import LocalDaemons

pytestmark = pytest.mark.live

SERVER = ["--key", "cpu", "--preload", "none", "--tvm", "off"]


@pytest.fixture
def daemons() -> Iterator[LocalDaemons]:
    made = LocalDaemons("the test's")
    made.open()
    yield made
    made.close()


def test_a_daemon_has_its_ready_line_and_ends_with_the_others(daemons: LocalDaemons) -> None:
    folder = daemons.folder
    assert folder is not None
    server = daemons.spawn("server", "rpcsys.server", SERVER, environment={"RPCSYS_SPEEDUPS": "0"})
    assert (server.port, server.ready) == (0, {})
    daemons.await_ready([server], time.monotonic() + 30)
    assert server.port == server.ready["port"] > 0
    daemons.check_running()
    daemons.close()
    assert server.process.returncode == 0
    assert not folder.exists()
    assert daemons.all == []


def test_one_that_ends_is_told_with_its_log(daemons: LocalDaemons) -> None:
    server = daemons.spawn("server", "rpcsys.server", ["--no-such-flag"])
    with pytest.raises(
        RpcsysError, match=r"the test's server ended with exit status 2; the end of its log:\n.*no-such"
    ):
        daemons.await_ready([server], time.monotonic() + 30)
    with pytest.raises(RpcsysError, match="the test's server ended with exit status 2"):
        daemons.check_running()


def test_one_that_says_something_else_is_told(daemons: LocalDaemons) -> None:
    version = daemons.spawn("zen", "this", [])
    with pytest.raises(RpcsysError, match=r"printed b'The Zen of Python.* instead of its ready line"):
        daemons.await_ready([version], time.monotonic() + 30)


def test_a_slow_start_names_the_cause_and_the_next_step(daemons: LocalDaemons, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcsys.local_daemons.START_TIMEOUT_S", 1.0)
    slow = daemons.spawn("slow", "rpcsys.server", [*SERVER, "--import", "tests.server.sleeper"])
    with pytest.raises(RpcsysError, match=r"within 1 s: this machine is too busy to start it, or an import hangs; try"):
        daemons.await_ready([slow], time.monotonic() + 1)
