"""Canaries of real boards: a planted slowdown is found, and a user never waits for one."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import rpcsys
from tests.live.daemons import Daemon, Daemons, free_port, wait_until
from tests.native import compiled

DUE_S = 90.0  # for two dozen runs of half a second each, on a busy machine
SOURCE = Path(__file__).with_name("waiting_canary.c")
WAIT_US = 30_000


class SlowableBoard:
    """A board whose canary takes as long as a file says."""

    def __init__(self, daemons: Daemons, tracker: Daemon, name: str) -> None:
        self.name = name
        self._file = daemons.folder / f"{name}.wait"
        self.wait(WAIT_US)
        library = daemons.folder / f"{name}.so"
        compiled(SOURCE, library, f'-DFILE_NAME="{self._file}"')
        own = ("--no-isolation", "--preload", "none", "--tvm", "off", "--devices", "none")
        flags = ("--name", name, "--canary", str(library), "--canary-every", "0.05", *own)
        self.daemon = daemons.server(f"{name}-key", *flags, tracker=tracker)

    def wait(self, microseconds: float) -> None:
        """Set the time of its canary, in one step."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{microseconds:.0f}\n")
        new.replace(self._file)


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
        return bytes(reply.read())


def speeds(port: int) -> dict[str, Any]:
    return dict(json.loads(get(port, "/api/speeds"))["boards"])


def states(port: int) -> dict[str, str]:
    return {name: board["state"] for name, board in speeds(port).items()}


@pytest.mark.slow
def test_a_board_that_becomes_slower_by_three_percent_is_named_and_its_neighbour_is_not(daemons: Daemons) -> None:
    page, place = free_port(), free_port()
    flags = ("--http-port", str(page), "--state-dir", str(daemons.folder / "state"))
    tracker = daemons.tracker(*flags, port=place)
    slow, well = (SlowableBoard(daemons, tracker, name) for name in ("slow", "well"))
    wait_until(lambda: states(page) == {"slow": "ok", "well": "ok"}, DUE_S, "both are known")
    before = speeds(page)["slow"]
    slow.wait(1.03 * WAIT_US)
    wait_until(lambda: states(page)["slow"] == "slow", DUE_S, "the slower one is named")
    assert speeds(page)["slow"]["runs"] - before["runs"] <= 4 * before["promise"]
    assert "longer than its own" in speeds(page)["slow"]["reason"]
    assert states(page)["well"] == "ok"
    metrics = get(page, "/metrics").decode()
    assert 'rpcsys_tracker_slow_servers{key="slow-key"} 1.0' in metrics
    assert 'rpcsys_tracker_slow_servers{key="well-key"} 0.0' in metrics
    with rpcsys.connect_tracker(tracker.address) as link:
        session = link.request(None, labels={"health.speed": "ok"}, wait_timeout=DUE_S)
        assert session.lease["server"] == "well"
        session.close()

    tracker.kill()
    tracker = daemons.tracker(*flags, port=place)
    wait_until(lambda: states(page) == {"slow": "slow", "well": "ok"}, DUE_S, "the tracker remembers them")
    slow.wait(WAIT_US)
    wait_until(lambda: states(page) == {"slow": "ok", "well": "ok"}, DUE_S, "it is well again")
    assert [board.daemon.terminate() for board in (slow, well)] == [0, 0]


def test_a_user_who_comes_while_a_canary_runs_ends_it(daemons: Daemons) -> None:
    tracker, page = daemons.tracker(), free_port()
    own = ("--preload", "none", "--tvm", "off", "--devices", "none", "--http-port", str(page))
    server = daemons.server("rpi4", "--canary", "--canary-every", "0.01", *own, tracker=tracker)

    def count(outcome: str) -> int:
        line = rf'rpcsys_server_canary_runs_total{{key="rpi4",outcome="{outcome}"}} (\d+)'
        found = re.search(line, get(page, "/metrics").decode())
        assert found is not None
        return int(found[1])

    wait_until(lambda: count("done") + count("disturbed"), DUE_S, "a canary has run")
    with rpcsys.connect_tracker(tracker.address) as link:
        for _ in range(20):
            with link.request("rpi4", wait_timeout=DUE_S) as session:
                assert session.get_function("testing.echo")(1) == 1
            ended = count("done") + count("disturbed") + count("stopped")
            wait_until(lambda: count("done") + count("disturbed") + count("stopped") > ended, DUE_S, "another ran")  # noqa: B023
            if count("stopped"):
                break
        assert count("stopped")
        assert count("failed") == 0
    assert server.terminate() == 0  # else what it leaves is looked at while the next canary begins
