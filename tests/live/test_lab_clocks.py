"""Boards, desks and a proxy with the wrong time in a closed lab: nothing differs. The tracker's clock alone counts."""

from __future__ import annotations

import calendar
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rpcsys.link import credential
from tests.live.daemons import START_S, Daemon, Daemons, wait_free, wait_until
from tests.live.lab_site import COMMAND_S, KEEPER, UNAUTHORIZED, LabSite
from tests.live.probe import SESSION_MAGIC, SessionProbe, TrackerProbe

YEARS = (1970, 1999, 2040)
#: What a program does at a desk: sessions on each board.
PROGRAM = """
import sys, time
import numpy as np
import rpcsys
print(time.gmtime().tm_year)
with rpcsys.connect_tracker(sys.argv[1]) as tracker:
    for key in sys.argv[2:]:
        with tracker.request(key, wait_timeout=60, session_timeout=120) as session:
            sent = np.arange(100_000)
            assert (session.get_function("testing.echo")(sent) == sent).all()
            session.upload(b"data", "file")
            assert session.download("file") == b"data"
            tracker.renew(session, 100)
    assert tracker.summary()["servers"]
"""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """The environment of a process with the time of day of a year; ``still``: it does not go on."""
    library = tmp_path_factory.mktemp("clock") / "wrong_clock.so"
    source = Path(__file__).with_name("wrong_clock.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)

    def environment(year: int, *, still: bool = False) -> dict[str, str]:
        begin = calendar.timegm((year, 1, 1, 1, 0, 0))
        shown = f"={begin}" if still else str(begin - int(time.time()))
        return {"LD_PRELOAD": str(library), "WRONG_CLOCK": shown}

    return environment


class Site(LabSite):
    """A lab; `at` is the environment of its users' commands beside their own."""

    def __init__(self, folder: Path, daemons: Daemons) -> None:
        super().__init__(folder, daemons)
        self.at: dict[str, str] = {}

    def environment(self, user: str) -> dict[str, str]:
        return {**super().environment(user), **self.at}

    def start(self, **popen: dict[str, str]) -> Daemon:
        self.note_keeper()
        command = (sys.executable, "-m", "rpcsys.tracker", "--host", "127.0.0.1", "--port", str(self.port))
        self.tracker = self.daemons.launch("tracker", (*command, "--lab", str(self.path)), **popen)
        self.tracker.await_ready_line()
        return self.tracker

    def enrol(self, *words: str) -> tuple[str, ...]:
        path = self.folder / f"{words[1]}.json"
        self.run(KEEPER, "lab", "enrol", *words, "--out", str(path))
        return ("--lab", str(path))


@pytest.fixture
def site(tmp_path: Path, daemons: Daemons) -> Site:
    made = Site(tmp_path, daemons)
    made.init()
    made.start()
    return made


def test_boards_and_desks_of_any_year(site: Site, daemons: Daemons, clock: Callable[..., dict[str, str]]) -> None:
    gate = daemons.proxy("--tracker", site.where, *site.enrol("--proxy", "gate"), env=clock(1970))
    keys = []
    for year in YEARS:
        keys.append(key := f"of-{year}")
        own = ("--name", key, "--preload", "numpy", *site.enrol("--board", key, "--key", key))
        if year == 1999:
            behind = daemons.behind(gate, key, *own, "--tvm", "off", flavour="ours", env=clock(year, still=True))
            behind.await_ready_line()
            wait_free(site.tracker, key, 1, START_S)
        else:
            daemons.server(key, *own, tracker=site.tracker, env=clock(year))
    for year, still in ((1999, False), (2040, False), (1999, True)):
        user = f"bo{year}{still}"
        line = site.invite(user)
        site.at = clock(year, still=still)
        site.run(user, "login", typed=line)
        assert site.who(user)["member"] == user
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, site.where, *keys],
            env=site.environment(user), capture_output=True, text=True, timeout=COMMAND_S,
        )  # fmt: skip
        assert (done.stdout, done.returncode) == (f"{year}\n", 0), done.stderr
        through_connect(site, user, keys[0])
        site.at = {}
    assert sorted(site.members()) == sorted(["gate", KEEPER, *keys, "bo1999False", "bo2040False", "bo1999True"])


def through_connect(site: Site, user: str, key: str) -> None:
    """A session of TVM's protocol through the user's ``rpcsys connect``."""
    command = (sys.executable, "-m", "rpcsys.forward", "--listen", "127.0.0.1:0", "--tracker", site.where)
    desk = site.daemons.launch("connect", command, env=site.environment(user))
    desk.await_ready_line()
    with TrackerProbe(desk.address) as probe:
        host, port, match_key = probe.lease(key)
        with SessionProbe((host, port), match_key) as session:
            assert session.code == SESSION_MAGIC


def test_keys_change_at_desks_and_boards_of_any_year(
    site: Site, daemons: Daemons, clock: Callable[..., dict[str, str]]
) -> None:
    own = site.enrol("--board", "b1", "--key", "rpi4")
    board = daemons.server("rpi4", "--name", "b1", *own, tracker=site.tracker, env=clock(1970))
    before = site.join("bo")
    site.run(KEEPER, "lab", "renew", "*")
    site.at = clock(2040)
    pins = json.loads(site.run(KEEPER, "lab", "rotate"))["pins"]

    def followed() -> bool:
        site.who("bo")
        held = [site.credential("bo"), credential.read(own[1])]
        return all(list(one.pins) == pins and not one.next_token for one in held)

    wait_until(followed, START_S, "desk and board follow")
    assert site.credential("bo").token != before.token
    wait_free(site.tracker, "rpi4", 1, START_S)
    assert "\n1970-01-01" in board.stderr()


def test_a_membership_ends_by_the_trackers_clock(site: Site, clock: Callable[..., dict[str, str]]) -> None:
    lines = site.invite("bo", "--expires", "90d"), site.invite("cy")
    site.run("bo", "login", typed=lines[0])
    site.at = clock(2040)
    assert site.who("bo")["expires"] < calendar.timegm((2040, 1, 1, 0, 0, 0))
    site.at = {}
    for year, status in ((2040, UNAUTHORIZED), (1970, 0)):
        site.kill()
        site.start(env=clock(year))
        assert ("expired" in site.run("bo", "whoami", status=status)) == bool(status)
    site.run("cy", "login", typed=lines[1])  # made after now, for the tracker: its 24 hours are not over
