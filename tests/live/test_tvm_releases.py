"""TVM 0.25 beside the installed TVM: its unmodified client at our tracker, proxy and servers; its runtime on boards.

Each release's client uses a library that the same release compiled, on servers with either release. TVM's own server
of the release proves the scenario.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from tests.combinations import usual
from tests.live.artefacts import LENGTH
from tests.live.daemons import SERVERS, START_S, TRACKERS, Daemons, wait_free
from tests.live.tvm_release import CLIENT, RELEASES
from tests.live.ways import every_way

pytest.importorskip("tvm")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KEY = "board"
USE_S = 200.0
INSTALLED = "installed"


@pytest.fixture(scope="module")
def pythons() -> dict[str, str]:
    """The interpreter of each release; the first use of this fixture installs them."""
    return {INSTALLED: sys.executable, **{name: str(release.python()) for name, release in RELEASES.items()}}


@pytest.fixture(scope="module")
def libraries(pythons: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``addone``, compiled by each release."""
    folder = tmp_path_factory.mktemp("libraries")
    made = {release: folder / f"addone{place}.so" for place, release in enumerate(pythons)}
    for release, path in made.items():
        client(pythons[release], "compile", path)
    return made


def client(python: str, *arguments: object) -> str:
    """Run the client's program; its output."""
    command = [python, "-I", str(CLIENT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=USE_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(autouse=True)
def flavours(monkeypatch: pytest.MonkeyPatch, pythons: dict[str, str]) -> None:
    """Each flavour of the daemons with each release, as ``RELEASE-FLAVOUR``."""
    for table in (TRACKERS, SERVERS):
        for flavour in list(table.values()):
            for release, python in pythons.items():
                name = f"{release}-{flavour.name}"
                monkeypatch.setitem(table, name, replace(flavour, name=name, command=(python, *flavour.command[1:])))


BOARDS = [f"{INSTALLED}-ours", f"{INSTALLED}-ctypes", "0.25-tvm", "0.25-ours", "0.25-ctypes"]
PAIRS = [(user, board) for user in ("0.25", INSTALLED) for board in BOARDS]


def is_usual(pair: tuple[str, str]) -> bool:
    """Whether two releases meet, on a server of ours."""
    user, board = pair
    return not board.startswith(user) and not board.endswith("tvm")


@pytest.mark.parametrize(("user", "board"), usual(PAIRS, is_usual))
def test_a_session_with_everything_in_it(
    daemons: Daemons, pythons: dict[str, str], libraries: dict[str, Path], user: str, board: str
) -> None:
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker, flavour=board)
    for _ in range(2):  # the board is free again
        assert "used" in client(pythons[user], "use", libraries[user], *tracker.address, KEY)
        wait_free(tracker, KEY, 1, START_S)


PROXIED = [("0.25", f"{INSTALLED}-ours"), ("0.25", "0.25-tvm"), (INSTALLED, "0.25-ours")]


@every_way
@pytest.mark.parametrize(("user", "board"), usual(PROXIED, PROXIED[:1].__contains__))
def test_the_same_through_a_proxy(
    daemons: Daemons, pythons: dict[str, str], libraries: dict[str, Path], user: str, board: str
) -> None:
    tracker = daemons.tracker()
    proxy = daemons.proxy("--tracker", tracker.where)
    daemons.behind(proxy, KEY, flavour=board)
    wait_free(tracker, KEY, 1, START_S)
    assert "used" in client(pythons[user], "use", libraries[user], *tracker.address, KEY)


def test_our_server_at_the_older_releases_tracker(
    daemons: Daemons, pythons: dict[str, str], libraries: dict[str, Path]
) -> None:
    tracker = daemons.tracker(flavour="0.25-tvm")
    daemons.server(KEY, tracker=tracker)
    assert "used" in client(pythons["0.25"], "use", libraries["0.25"], *tracker.address, KEY)


@pytest.mark.parametrize("board", ["0.25-ours", "0.25-ctypes"])
def test_our_session_runs_both_releases_code_on_the_older_runtime(
    daemons: Daemons, libraries: dict[str, Path], board: str
) -> None:
    server = daemons.server(KEY, flavour=board)
    x = np.arange(LENGTH, dtype="float32")
    for library in libraries.values():
        with rpcsys.connect(*server.address, key=KEY) as session:
            assert (session.load_module(library)["addone"](x, rpcsys.empty(LENGTH)) == x + 1).all()
