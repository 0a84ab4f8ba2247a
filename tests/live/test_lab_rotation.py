"""A lab whose keys, tokens, rules and host change while 100 members and 50 boards work: no call and no request fails.

Eight of the members and two of the boards are real clients and servers with sessions; see `busy_lab` for the others.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import rpcsys
from rpcsys.errors import RpcsysError
from rpcsys.link import credential
from rpcsys.tracker.lab_folder import LabFolder
from tests.live.busy_lab import BusyLab, Calls
from tests.live.daemons import Daemons, wait_until
from tests.live.lab_site import KEEPER, LabSite
from tests.live.labs import LabOnDisk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MEMBERS, BOARDS, CLIENTS, SERVERS = 92, 48, 8, 2
EDGE = "edge"
FOLLOW_S = 120.0


class ChangingLab:
    """``site``: its commands and tracker. ``held``: everybody's credentials."""

    def __init__(self, folder: Path, daemons: Daemons) -> None:
        self.folder, self.daemons = folder, daemons
        self.site = LabSite(folder, daemons)
        disk = LabOnDisk(folder, port=self.site.port)
        disk.path = disk.path.rename(self.site.path)
        credential.write(str(self.site.place(KEEPER)), disk.keeper)
        self.work = BusyLab(disk, MEMBERS, BOARDS)
        own = folder / "clients.json"
        boards = [folder / f"{EDGE}-{number}.json" for number in range(SERVERS)]
        credential.write(str(own), disk.join("clients"))
        for file in boards:
            credential.write(str(file), disk.board(file.stem, [EDGE]))
        self.held = [*self.work.files, own, *boards]
        self.site.start()
        credential.use(str(own))
        self.own = str(own)
        for file in boards:
            flags = ("--name", file.stem, "--lab", str(file), "--slots", str(CLIENTS // SERVERS), "--preload", "none")
            daemons.server(EDGE, *flags, "--tracker", self.site.where)
        self.work.start()
        self.calls = Calls(self._session, CLIENTS, 40)

    @contextlib.contextmanager
    def _session(self) -> Iterator[rpcsys.Session]:
        with rpcsys.connect_tracker(self.site.where) as tracker:
            with tracker.request(EDGE, wait_timeout=60, wait_for_key=True) as session:
                yield session

    def command(self, *words: str) -> str:
        return self.site.run(KEEPER, *words)

    def goes_on(self) -> None:
        """Wait until all have worked some more."""
        before = self.work.done["leases"], self.calls.done
        wanted = before[0] + MEMBERS, before[1] + 100
        wait_until(
            lambda: self.work.failed or self.calls.failed
            or (self.work.done["leases"] > wanted[0] and self.calls.done > wanted[1]),
            FOLLOW_S, "work goes on",
        )  # fmt: skip
        assert (self.work.failed, self.calls.failed) == ([], [])

    def followed(self, pins: tuple[str, ...]) -> None:
        """Wait until all hold these pins, and the tracker has noted that they came in."""
        wait_until(lambda: {credential.read(str(file)).pins for file in self.held} == {pins}, FOLLOW_S, "all follow")
        since = LabFolder(self.site.path).settings.rotated
        wait_until(lambda: all((row["used"] or 0) > since for row in self._members()), FOLLOW_S, "all came in")

    def renewed(self) -> None:
        """Wait until all have made themselves new tokens, and used them."""
        left: list[str] = []

        def none_is_left() -> bool:
            left[:] = [row["name"] for row in self._members() if row["renew"]]
            return not left

        try:
            wait_until(none_is_left, FOLLOW_S, "all have renewed")
        except AssertionError:
            raise AssertionError(f"{left} have not renewed") from None

    def _members(self) -> list[dict[str, float]]:
        return [*self.site.members().values()]

    def move(self, place: Path) -> None:
        """Lose the tracker's host: a copy without keys, and the spare, bring the lab back in another folder."""
        spare = LabFolder(self.site.path).spare_path.read_text()
        self.site.kill()
        shutil.copytree(self.site.path, place / "lab", ignore=shutil.ignore_patterns("*.pem"))
        shutil.rmtree(self.site.path)
        (place / "spare.pem").write_text(spare)
        self.site = LabSite(place, self.daemons, self.site.port)
        own = ("--dir", str(self.site.path), "--spare", str(place / "spare.pem"), "--member", KEEPER)
        self.command("lab", "recover", *own)
        self.site.start()

    def stop(self) -> None:
        self.work.stop()
        self.calls.stop()
        credential.use_no_more(self.own)


@pytest.fixture
def lab(tmp_path: Path, daemons: Daemons) -> Iterator[ChangingLab]:
    made = ChangingLab(tmp_path, daemons)
    yield made
    made.stop()


def test_nothing_fails_while_keys_tokens_and_rules_change(lab: ChangingLab) -> None:
    lab.goes_on()
    rules = (lab.site.path / "policy.toml").read_text()
    for number in range(3):
        pins = tuple(json.loads(lab.command("lab", "rotate"))["pins"])
        lab.followed(pins)
        lab.command("lab", "renew", "*")
        lab.renewed()
        lab.command("lab", "open")
        lab.goes_on()
        lab.command("lab", "close")
        more = f'[[allow]]\nwho = ["member-*"]\nkeys = ["x{number}"]\npriority = 2\n'
        (lab.site.path / "policy.toml").write_text(rules + more)
        lab.goes_on()
        (lab.site.path / "policy.toml").write_text("[[allow\n")
        lab.goes_on()
    assert "the rules stay as they were" in lab.site.tracker.stderr()


def test_the_spare_brings_the_lab_back_on_another_host(lab: ChangingLab) -> None:
    """No call of a session fails while the tracker is away, a queued request keeps its place, and all follow."""
    lab.goes_on()
    late, place = lab.folder / "late.json", lab.folder / "elsewhere"
    with rpcsys.connect_tracker(lab.site.where) as tracker, tracker.request(EDGE, wait_timeout=60) as session:
        calls = Calls(lambda: contextlib.nullcontext(session), 1, sys.maxsize)
        waiting = Waiting(tracker)
        lab.work.away = lab.calls.away = True
        lab.move(place)
        lab.followed(LabFolder(lab.site.path).settings.pins)
        lab.work.away = lab.calls.away = False
        lab.command("lab", "enrol", "--board", "late", "--key", "late", "--out", str(late))
        lab.daemons.server("late", "--name", "late", "--lab", str(late), "--tracker", lab.site.where)
        waiting.join(60)
        calls.stop()
        assert (waiting.problem, calls.failed) == (None, [])
        assert calls.done
    lab.goes_on()


class Waiting(threading.Thread):
    """A request for a board that is not there yet. It is in the queue when this is made."""

    def __init__(self, tracker: rpcsys.Tracker) -> None:
        super().__init__(daemon=True)
        self.problem: object = "it still waits"
        self._tracker, self._queued = tracker, threading.Event()
        self.start()
        assert self._queued.wait(60)

    def run(self) -> None:
        asked = {"wait_timeout": FOLLOW_S, "wait_for_key": True, "on_queued": lambda event: self._queued.set()}
        try:
            self._tracker.request("late", **asked).close()
            self.problem = None
        except RpcsysError as error:
            self.problem = error
