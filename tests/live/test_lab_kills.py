"""A lab while its tracker is killed, and its keys are changed under load."""

from __future__ import annotations

import collections
import json
import threading
import time
from pathlib import Path

from rpcsys.link.link import Link
from rpcsys.tracker.lab_folder import LabFolder
from tests.live.daemons import wait_until
from tests.live.lab_site import KEEPER, UNAUTHORIZED, LabSite


def killed_in(site: LabSite, user: str, *words: str, typed: str = "", after_s: float) -> int:
    """Kill the tracker ``after_s`` seconds after a command has connected, and start it again; the command's status."""
    with site.begin(user, *words) as process:
        done = threading.Thread(target=lambda: process.communicate(typed))
        done.start()
        wait_until(lambda: not done.is_alive() or _connected(site), 30, "the command connects")
        time.sleep(after_s)
        site.kill()
        done.join(60)
    site.start()
    return process.returncode


def _connected(site: LabSite) -> bool:
    """Whether the tracker has a connection."""
    place = f":{site.port:04X} "
    return any(place in line and " 01 " in line for line in Path("/proc/net/tcp").read_text().splitlines()[1:])


KILLS_S = [0.0, 0.002, 0.004, 0.006, 0.01]


def test_a_kill_during_a_join_leaves_a_stranger_or_a_member(site: LabSite) -> None:
    for number, after_s in enumerate(KILLS_S):
        name, line = f"m{number}", site.invite(f"m{number}")
        status = killed_in(site, name, "login", typed=line, after_s=after_s)
        if status:
            site.run(name, "login", typed=line)
        assert site.who(name)["member"] == name


def test_a_kill_during_a_revocation_leaves_a_member_or_none(site: LabSite) -> None:
    for number, after_s in enumerate(KILLS_S):
        name = f"m{number}"
        site.join(name)
        status = killed_in(site, KEEPER, "lab", "revoke", name, after_s=after_s)
        revoked = site.members()[name]["revoked"] is not None
        assert revoked or status
        with site.begin(name, "whoami") as process:
            assert process.wait(60) == (UNAUTHORIZED if revoked else 0)


def test_a_kill_during_a_rotation_leaves_the_lab_before_or_after_it(site: LabSite) -> None:
    site.join("bo")
    for after_s in KILLS_S:
        before = LabFolder(site.path).settings.pins
        status = killed_in(site, KEEPER, "lab", "rotate", "--force", after_s=after_s)
        after = LabFolder(site.path)
        assert after.settings.pins == before or after.settings.pins[0] == before[1]
        assert after.settings.pins != before or status
        assert after.identity().pin in after.settings.pins[0]
        assert after.spare().pin in after.settings.pins[1]
        for user in ("bo", KEEPER):
            assert site.who(user)["lab"] == "basement"
            assert site.credential(user).pins == after.settings.pins


def test_a_kill_during_a_renewal_leaves_a_token_that_is_valid(site: LabSite) -> None:
    """The keeper's wish and the member's new token: the tracker is killed in the middle of either."""
    site.join("bo")
    for after_s in KILLS_S[::2]:
        status = killed_in(site, KEEPER, "lab", "renew", "bo", after_s=after_s)
        assert site.members()["bo"]["renew"] or status
        site.run(KEEPER, "lab", "renew", "bo")
        before = site.credential("bo").token
        killed_in(site, "bo", "whoami", after_s=after_s)
        assert site.who("bo")["member"] == "bo"
        assert site.who("bo")["member"] == "bo"  # the new token was used
        assert site.credential("bo").token != before
        assert not site.members()["bo"]["renew"]


def test_a_kill_while_a_lab_is_opened_or_closed_leaves_it_open_or_closed(site: LabSite) -> None:
    for number, after_s in enumerate([*KILLS_S, *KILLS_S]):
        before, wanted = LabFolder(site.path).settings.open, number % 2 == 0
        status = killed_in(site, KEEPER, "lab", "open" if wanted else "close", after_s=after_s)
        after = LabFolder(site.path).settings.open
        assert after == wanted or (status and after == before)
        assert site.who(KEEPER)["lab"] == "basement"


def test_a_recovery_that_is_killed_is_made_again(site: LabSite) -> None:
    """The command is killed at any moment of its work."""
    elsewhere = site.folder / "spare.pem"
    own = ("lab", "recover", "--dir", str(site.path), "--member", KEEPER, "--spare", str(elsewhere))
    for after_s in (0.4, 0.5, 0.6, 0.7, 0.8, 1.0):
        site.kill()
        elsewhere.write_text(LabFolder(site.path).spare_path.read_text())
        with site.begin(KEEPER, *own) as process:
            time.sleep(after_s)
            process.kill()
        lab = LabFolder(site.path)
        assert lab.identity().pin in lab.settings.pins[0]
        elsewhere.write_text(lab.spare_path.read_text())
        site.run(KEEPER, *own)
        site.start()
        assert "keeper" in site.who(KEEPER)["rights"]


def test_rotations_and_renewals_under_load_fail_nobody(site: LabSite) -> None:
    """Several programs of each member connect all the time, each reads its file anew."""
    users = ["bo", "cy", KEEPER]
    for user in users[:2]:
        site.join(user)
    stop, failures, rounds = threading.Event(), [], collections.Counter[str]()

    def come_in(user: str) -> None:
        while not stop.is_set():
            try:
                held = site.credential(user)
                with Link.open(("127.0.0.1", site.port), credential=held, timeout=30) as link:
                    link.ask("whoami", timeout=30)
                rounds[user] += 1
            except Exception as error:
                failures.append((user, error))

    threads = [threading.Thread(target=come_in, args=(user,)) for user in users * 2]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            pins = tuple(json.loads(site.run(KEEPER, "lab", "rotate"))["pins"])
            wait_until(lambda pins=pins: all(site.credential(user).pins == pins for user in users), 30, "all follow")
            site.run(KEEPER, "lab", "renew", "*")
            wait_until(lambda: not any(row["renew"] for row in site.members().values()), 30, "all have renewed")
            rotated = LabFolder(site.path).settings.rotated
            wait_until(lambda least=rotated: min(row["used"] for row in site.members().values()) > least, 30, "used")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert min(rounds[user] for user in users) > 10
