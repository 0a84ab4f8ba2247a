"""``rpcsys board`` in a closed lab, over a real sshd: a board gets its credential, serves with it, and loses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpcsys.link import credential
from tests.live.board_cli import START_S
from tests.live.booted import Booted
from tests.live.daemons import Daemons, queue, wait_free, wait_until
from tests.live.lab_site import KEEPER, LabSite
from tests.live.sshboard import SshBoard, SystemdBoard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
KEY = "lab:board"
CREDENTIAL = "/etc/rpcsys/b1.lab.json"


@pytest.fixture
def site(tmp_path: Path, daemons: Daemons) -> LabSite:
    site = LabSite(tmp_path, daemons)
    site.init("--open")
    site.start()
    return site


@pytest.fixture
def board(tmp_path: Path, short_folder: Path):
    (tmp_path / "board").mkdir()
    made = SshBoard(tmp_path / "board", "", {}).start()
    yield made
    made.stop()


def add(site: LabSite, board: SshBoard, archive: Path, user: str = KEEPER, *more: str) -> str:
    return site.run(
        user, "board", "add", "root@127.0.0.1", "--key", KEY, "--tracker", site.where, "--name", "b1",
        "--archive", str(archive), *board.flags(known=True), *more, "--", "--host", "127.0.0.1", "--port", "0",
    )  # fmt: skip


def served(site: LabSite) -> None:
    assert site.tracker is not None
    wait_free(site.tracker, KEY, 1, START_S)


def rotates(site: LabSite) -> bool:
    with site.begin(KEEPER, "lab", "rotate") as process:
        process.communicate(timeout=START_S)
    return process.returncode == 0


def test_a_board_is_added_renewed_revoked_and_added_again(
    site: LabSite, board: SshBoard, current_archive: Path
) -> None:
    site.run(KEEPER, "lab", "close")
    assert "b1 serves lab:board" in add(site, board, current_archive)
    assert board.shell(f"stat -c %a {CREDENTIAL}").strip() == "600"
    own = credential.parse(board.shell(f"cat {CREDENTIAL}"), "it")
    assert (own.member, own.trackers) == ("b1", (site.where,))
    assert site.members()["b1"]["keys"] == [KEY]
    assert "serves, 1 of 1 free" in site.run(KEEPER, "board", "list")

    add(site, board, current_archive, KEEPER, "--wait", "60")  # other flags; the credential stays
    assert board.shell(f"cat {CREDENTIAL}") == own.text()
    site.run(KEEPER, "lab", "renew", "b1")
    board.shell("/etc/init.d/rpcsys-server stop; /etc/init.d/rpcsys-server start")
    wait_until(lambda: board.shell(f"cat {CREDENTIAL}") != own.text(), START_S, "the board has a new token")
    served(site)

    site.run(KEEPER, "lab", "enrol", "--board", "b9", "--key", KEY)  # its server never starts
    pins = json.loads(site.run(KEEPER, "lab", "rotate"))["pins"]
    locked_out = site.run(KEEPER, "lab", "rotate", status=4).partition("since the last one: ")[2]
    assert "b9" in locked_out  # beside mo, and b1 where it has not connected anew yet
    site.run(KEEPER, "lab", "revoke", "b9")
    site.kill()
    site.start()  # so that everybody connects anew
    served(site)
    wait_until(lambda: pins[1] in board.shell(f"cat {CREDENTIAL}"), START_S, "the board has the new pins")
    wait_until(lambda: rotates(site), START_S, "nobody would be locked out")

    site.run(KEEPER, "lab", "revoke", "b1")
    assert site.tracker is not None
    wait_until(lambda: queue(site.tracker, KEY)["free"] == 0, START_S, "the board is out")
    assert site.run(KEEPER, "board", "secure", "b1", "--archive", str(current_archive)) == (
        "b1 had a credential already\n"
    )
    said = site.run(KEEPER, "board", "secure", "b1", "--anew", "--archive", str(current_archive))
    assert said == "b1 has a credential\n"
    served(site)
    assert site.run(KEEPER, "board", "remove", "b1") == "b1 is removed\n"
    assert site.members()["b1"]["revoked"]
    assert board.shell("ls -d /etc/rpcsys 2>/dev/null; :").strip() == ""


def test_boards_of_an_open_lab_are_secured(site: LabSite, board: SshBoard, current_archive: Path) -> None:
    """The stranger's desk has no credential, and adds a board as before."""
    add(site, board, current_archive, "stranger")
    assert "--lab" not in board.shell("cat /etc/rpcsys/b1.flags").split()
    inventory = site.folder / "stranger" / "state" / "rpcsys" / "boards.json"
    own = site.folder / KEEPER / "state" / "rpcsys"
    own.mkdir(parents=True)
    (own / "boards.json").write_text(inventory.read_text())
    refused = site.run("stranger", "board", "secure", "--all", "--archive", str(current_archive), status=1)
    assert "no credential here for a lab at" in refused
    assert site.run(KEEPER, "board", "secure", "--all", "--archive", str(current_archive)) == "b1 has a credential\n"
    site.run(KEEPER, "lab", "close")
    served(site)
    assert json.loads(site.run(KEEPER, "board", "list", "--json"))["state"] == "serves, 1 of 1 free"


def test_a_board_with_systemd_renews_its_token_where_etc_is_closed(
    daemons: Daemons, current_archive: Path, tmp_path: Path
) -> None:
    machine = Booted(daemons)
    try:
        with machine.entered():  # also for the check of its daemons: they listen in the machine's network
            (tmp_path / "board").mkdir()
            try:
                _renewed(LabSite(tmp_path, daemons), SystemdBoard(tmp_path / "board", machine=machine), current_archive)
            finally:
                daemons.stop()
    finally:
        machine.close()


def _renewed(site: LabSite, board: SystemdBoard, archive: Path) -> None:
    site.init()
    site.start()
    board.start()
    add(site, board, archive)
    own = board.shell(f"cat {CREDENTIAL}")
    site.run(KEEPER, "lab", "renew", "b1")
    for _ in range(2):  # it has the new token, and uses it
        board.shell("systemctl restart rpcsys-server@b1")
        served(site)
    wait_until(lambda: not site.members()["b1"]["renew"], START_S, "the new token was used")
    assert board.shell(f"cat {CREDENTIAL}") == own
    renewed = credential.parse(board.shell("cat /var/lib/rpcsys/b1.lab.json"), "it")
    assert renewed.token != credential.parse(own, "it").token
    assert board.shell("stat -c %a /var/lib/rpcsys /var/lib/rpcsys/b1.lab.json").split() == ["700", "600"]
    site.run(KEEPER, "board", "secure", "b1", "--anew", "--archive", str(archive))  # which counts from then on
    served(site)
    site.run(KEEPER, "board", "remove", "b1")
    assert board.shell("ls -d /etc/rpcsys /var/lib/rpcsys 2>/dev/null; :").strip() == ""
