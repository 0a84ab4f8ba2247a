"""The commands of a lab, typed at several desks, against its tracker: what people do, their mistakes, and kills."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import rpcsys
from rpcsys.errors import Unauthorized, WaitTimeout
from rpcsys.link import credential
from rpcsys.link.link import Link
from rpcsys.tracker.lab_folder import LabFolder
from tests.live.daemons import Daemons, free_port, wait_until
from tests.live.lab_site import KEEPER, UNAUTHORIZED, LabSite
from tests.live.probe import KEEPERS, TrackerProbe
from tests.live.ways import OPEN

# What people do


def test_the_first_five_minutes(site: LabSite) -> None:
    said = site.run("bo", "login", typed=site.invite("bo", "--group", "compiler", "--expires", "90d"))
    assert said == f"you are bo in lab basement; type next: export RPCSYS_TRACKER={site.where}\n"
    assert site.place("bo").stat().st_mode & 0o777 == 0o600
    assert os.listdir(site.place("bo").parent) == ["basement.json"]
    who = site.who("bo")
    assert (who["lab"], who["member"], who["kind"], who["groups"]) == ("basement", "bo", "p", ["compiler"])
    assert who["rights"] == ["see"]
    assert who["expires"] == pytest.approx(who["joined"] + 90 * 86400)
    assert "keeper" in site.who(KEEPER)["rights"]
    table = site.run("bo", "lab", "members", "--tracker", site.where)
    assert [line.split()[0] for line in table.splitlines()] == ["name", "bo", KEEPER]
    assert "bo may not do this" in site.run("bo", "lab", "invite", "cy", status=UNAUTHORIZED)
    assert site.run(KEEPER, "lab", "revoke", "bo") == "bo is no member any more\n"
    assert "this credential is revoked" in site.run("bo", "whoami", status=UNAUTHORIZED)
    assert site.members()["bo"]["revoked"]
    site.join("bo")
    shown = [line.split()[0] for line in site.run("bo", "whoami").splitlines()]
    assert shown == ["lab", "member", "kind", "groups", "joined", "expires", "used", "rights"]
    assert site.who("bo")["groups"] == []


def test_boards_and_proxies_are_enrolled(site: LabSite, tmp_path: Path) -> None:
    out = tmp_path / "rpi4-3.json"
    site.run(KEEPER, "lab", "enrol", "--board", "rpi4-3", "--key", "rpi4", "--out", str(out))
    board = credential.read(str(out))
    assert (board.lab, board.member, board.trackers) == ("basement", "rpi4-3", (site.where,))
    proxy = credential.parse(site.run(KEEPER, "lab", "enrol", "--proxy", "gate", "--key", "rpi3"), "it")
    assert proxy.token.startswith("rpcsys_x_")
    assert {name: row["keys"] for name, row in site.members().items() if row["kind"] != "p"} == {
        "gate": ["rpi3"], "rpi4-3": ["rpi4"],
    }  # fmt: skip
    used = site.run(KEEPER, "lab", "enrol", "--board", "rpi4-3", "--key", "rpi4", "--out", str(out), status=2)
    assert "it is there already" in used
    again = site.run(KEEPER, "lab", "enrol", "--board", "rpi4-3", "--key", "rpi4", status=UNAUTHORIZED)
    assert "rpi4-3 is a member already" in again
    assert "names its keys" in site.run(KEEPER, "lab", "enrol", "--board", "b", status=1)
    assert "choose another name" in site.run(KEEPER, "lab", "invite", "keepers", status=1)


def test_a_board_may_be_invited(site: LabSite, tmp_path: Path) -> None:
    out = tmp_path / "etc" / "lab.json"
    line = site.invite("rpi4-3", "--board", "--key", "rpi4")
    site.run("root", "login", "--out", str(out), typed=line)
    assert credential.read(str(out)).token.startswith("rpcsys_b_")
    assert os.listdir(site.folder / "root" / "rpcsys" / "labs") == []


def test_the_audit_log_is_shown_and_checked(site: LabSite) -> None:
    site.join("bo")
    site.run(KEEPER, "lab", "revoke", "bo")
    site.run(KEEPER, "lab", "revoke", "nobody", status=1)
    shown = site.run(KEEPER, "lab", "audit")
    for words in ("mo@127.0.0.1  invite bo", "bo@127.0.0.1  join", "mo@127.0.0.1  revoke bo", "(the lab has no member"):
        assert words in shown
    assert site.run(KEEPER, "lab", "audit", "--since", "2099-01-01") == ""
    lines = site.run(KEEPER, "lab", "audit", "--json", "--since", "1h").splitlines()
    assert len(lines) > 5
    assert lines == (site.path / "audit.jsonl").read_text().splitlines()[: len(lines)]  # logins go on
    said = site.run(KEEPER, "lab", "audit", "--verify")
    assert "lines, none changed" in said
    assert int(said.split()[0].replace(",", "")) >= len(lines)
    head = said.split()[-1]
    assert "none changed" in site.run(KEEPER, "lab", "audit", "--verify", "--head", head)
    other = site.run(KEEPER, "lab", "audit", "--verify", "--head", "0" * 63 + "1", status=1)
    assert "no line has the hash that was kept" in other
    text = (site.path / "audit.jsonl").read_text()
    (site.path / "audit.jsonl").write_text(text.replace('"join"', '"login"'))
    broken = site.run(KEEPER, "lab", "audit", "--verify", status=1)
    assert "of the audit log does not fit: the line before it was changed" in broken


def test_a_lab_is_opened_and_closed(tmp_path: Path, daemons: Daemons) -> None:
    site = LabSite(tmp_path, daemons)
    site.init("--open")
    site.start()
    assert "TVM" not in site.run("stranger", "query", "--tracker", site.where)
    assert site.tracker is not None
    server = daemons.server("rpi4", "--name", "old", tracker=site.tracker)
    with TrackerProbe(site.tracker.address) as tvm:
        tvm.summary()
        for words in (("lab", "members"), ("query", "--tracker", site.where)):
            shown = site.run(KEEPER, *words).partition("In the clear, without a credential\n")[2]
            assert [line.split() for line in shown.splitlines() if "shut out" in line] == [
                ["127.0.0.1", "127.0.0.1", "shut", "out"],
                ["server", "old", "127.0.0.1", "shut", "out"],
            ]
        with site.begin(KEEPER, "lab", "close") as process:
            out, err = process.communicate(timeout=60)
    assert (process.returncode, "members alone" in out) == (0, True)
    assert "2 peers without a credential shut out: 127.0.0.1, server old; rpcsys lab open lets them in again" in err
    server.terminate()
    refused = site.run("stranger", "drain", "b1", "--tracker", site.where, status=UNAUTHORIZED)
    assert f"the lab at {site.where} wants credentials" in refused
    assert "until you type: rpcsys lab close" in site.run(KEEPER, "lab", "open")
    site.run("stranger", "query", "--tracker", site.where)


def test_a_lab_that_is_closed_leases_no_board_in_the_clear(tmp_path: Path, daemons: Daemons) -> None:
    """Nor does it leave its lease open: a session that runs there goes on, and the tracker hears nothing of it."""
    site = LabSite(tmp_path, daemons)
    site.init("--open")
    site.start()
    assert site.tracker is not None
    server = daemons.server("rpi4", "--name", "old", "--slots", "2", tracker=site.tracker, offers=2)
    with rpcsys.connect_tracker(site.where) as desk, desk.request("rpi4") as session:
        echo = session.get_function("testing.echo")
        site.run(KEEPER, "lab", "close")
        wait_until(lambda: "wants credentials" in server.stderr(), 30, "the board is let go, and told why")
        assert echo("after") == "after"
        with Link.open(site.where, credential=site.credential(KEEPER)) as keeper:
            assert keeper.ask("summary", timeout=20).get("servers", []) == []
            with pytest.raises(WaitTimeout):
                keeper.ask("request", timeout=20, key="rpi4", wait_timeout=0)
            wait_until(lambda: not keeper.ask("summary", timeout=20).get("leases"), 60, "its lease is over")
        assert echo("still") == "still"
    server.terminate()


# Keys and tokens in turn


def test_members_follow_a_rotation_and_who_cannot_is_named(site: LabSite) -> None:
    before = site.join("bo")
    site.join("cy")
    line = json.loads(site.run(KEEPER, "lab", "rotate"))
    assert line["pins"][0] == before.pins[1]
    assert Path(line["spare"]).exists()

    def followed() -> bool:
        site.who("bo")
        return list(site.credential("bo").pins) == line["pins"]

    wait_until(followed, 20, "bo follows")
    wait_until(lambda: site.members()["bo"]["used"] > LabFolder(site.path).settings.rotated, 20, "bo's use is noted")
    refused = site.run(KEEPER, "lab", "rotate", status=UNAUTHORIZED)
    assert "locks out who has not connected since the last one: cy; rpcsys lab rotate --force" in refused
    assert json.loads(site.run(KEEPER, "lab", "rotate", "--force"))["pins"][0] == line["pins"][1]
    wait_until(lambda: site.begin("cy", "whoami").wait(60) == UNAUTHORIZED, 20, "cy is locked out")
    locked_out = site.run("cy", "whoami", status=UNAUTHORIZED)
    assert f"what answers at {site.where} is not lab basement" in locked_out
    assert "nothing was sent" in locked_out
    site.who("bo")


def test_a_spare_that_is_kept_elsewhere_is_asked_for(site: LabSite, tmp_path: Path) -> None:
    spare, kept = LabFolder(site.path).spare_path, tmp_path / "spare.pem"
    shutil.move(spare, kept)
    assert "the spare key of lab basement" in site.run(KEEPER, "lab", "rotate", status=1)
    (tmp_path / "other.pem").write_text((site.path / "lab.json").read_text())
    assert "no private key" in site.run(KEEPER, "lab", "rotate", "--spare", str(tmp_path / "other.pem"), status=1)
    pins = LabFolder(site.path).settings.pins
    assert json.loads(site.run(KEEPER, "lab", "rotate", "--spare", str(kept)))["pins"][0] == pins[1]
    wait_until(lambda: site.begin(KEEPER, "whoami").wait(60) == 0, 20, "the keeper follows")


def test_a_renewed_token_replaces_the_old_one(site: LabSite) -> None:
    before = site.join("bo")
    assert site.run(KEEPER, "lab", "renew", "bo").startswith("1 member will have a new token")
    assert "to renew its token" in site.run(KEEPER, "lab", "members")

    def renewed() -> bool:
        site.who("bo")
        return not site.members()["bo"]["renew"]

    wait_until(renewed, 30, "bo has a new token, and has used it")
    after = site.credential("bo")
    assert after.token != before.token
    assert after.next_token == ""
    Link.open(("127.0.0.1", site.port), credential=before).close()  # of a program that runs since before
    credential.write(str(site.place("bo")), before)
    with pytest.raises(Unauthorized, match="revoked"):
        Link.open(("127.0.0.1", site.port), credential=before)
    assert "revoked" in site.run("bo", "whoami", status=UNAUTHORIZED)
    assert site.run(KEEPER, "lab", "renew", "*").startswith("2 members")
    assert "no member nobody" in site.run(KEEPER, "lab", "renew", "nobody", status=UNAUTHORIZED - 3)


def test_who_is_locked_out_recovers_at_the_trackers_host(site: LabSite) -> None:
    site.run(KEEPER, "lab", "revoke", KEEPER)
    wait_until(lambda: site.begin(KEEPER, "whoami").wait(60) == UNAUTHORIZED, 20, "the keeper is out")
    site.run(KEEPER, "lab", "recover", "--dir", str(site.path), "--member", KEEPER)
    wait_until(lambda: site.begin(KEEPER, "whoami").wait(60) == 0, 20, "the tracker knows the keeper")
    assert "keeper" in site.who(KEEPER)["rights"]
    logged = map(json.loads, site.run(KEEPER, "lab", "audit", "--json").splitlines())
    assert [line["on"] for line in logged if line["did"] == "recover"] == [KEEPER]
    assert "none changed" in site.run(KEEPER, "lab", "audit", "--verify")


# Invitations


def test_an_invitation_may_have_line_breaks_and_is_used_once(site: LabSite) -> None:
    line = site.invite("bo")
    broken = "\r\n> ".join(textwrap.wrap(line, 60))
    assert "not whole" in site.run("bo", "login", typed=broken, status=2)
    site.run("bo", "login", typed="\n\n  " + "\r\n  ".join(textwrap.wrap(line, 60)) + "\n\n")
    assert site.who("bo")["member"] == "bo"
    used = site.run("cy", "login", typed=line, status=UNAUTHORIZED)
    assert "this invitation was used or is older than 24 h: ask for another (rpcsys lab invite NAME)" in used
    assert not site.place("cy").exists()


def test_a_credential_that_cannot_be_written_is_written_by_the_same_invitation(site: LabSite) -> None:
    line = site.invite("bo")
    refused = site.run("bo", "login", "--out", "/proc/lab.json", typed=line, status=2)
    assert "cannot write the credential /proc/lab.json" in refused
    assert "type rpcsys login again with the same invitation" in refused
    assert site.members()["bo"]["joined"]
    site.run("bo", "login", typed=line)
    assert site.who("bo")["member"] == "bo"


def test_a_lab_that_is_made_anew_replaces_what_was_for_its_address(site: LabSite, tmp_path: Path) -> None:
    old = site.join("bo")._replace(lab="attic")
    site.place("bo").unlink()
    place = site.place("bo").with_name("attic.json")
    credential.write(str(place), old)
    with site.begin("bo", "login") as process:
        _, err = process.communicate(site.invite("bob"))
    assert (process.returncode, f"{place} was for the same address" in err) == (0, True)
    assert sorted(os.listdir(place.parent)) == ["attic.json.old", "basement.json"]
    assert site.who("bo")["member"] == "bob"


def test_an_invitation_that_is_too_old_is_refused(site: LabSite) -> None:
    line = site.invite("bo")
    with contextlib.closing(sqlite3.connect(site.path / "lab.sqlite", timeout=10)) as file:
        file.execute("UPDATE invitations SET until = 1")
        file.commit()
    assert "older than 24 h" in site.run("bo", "login", typed=line, status=UNAUTHORIZED)


def test_an_invitation_to_another_lab_at_the_address_says_nothing_to_it(site: LabSite, tmp_path: Path) -> None:
    line = site.invite("bo")
    site.kill()
    other = LabSite(tmp_path / "other", site.daemons, site.port)
    other.init()
    other.start()
    refused = site.run("bo", "login", typed=line, status=UNAUTHORIZED)
    other.note_keeper()
    assert "is not lab of this invitation" in refused
    assert "nothing was sent" in refused


class Cut:
    """A relay to ``port`` that ends each connection once the other end has sent ``limit`` bytes (None: never)."""

    def __init__(self, port: int, limit: int | None = None) -> None:
        self.limit, self.counted = limit, 0
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(self._to)
                threading.Thread(target=self._relay, args=(client, upstream, False), daemon=True).start()
                threading.Thread(target=self._relay, args=(upstream, client, True), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if counted and self.limit is not None:
                    data = data[: self.limit - sent]
                sink.sendall(data)
                sent += len(data)
                if counted:
                    self.counted = sent
                    if sent == self.limit:
                        break
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def cut(site: LabSite) -> Iterator[Cut]:
    """A relay that is one of the lab's addresses, the first one."""
    relay = Cut(site.port)
    settings = LabFolder(site.path)
    path = site.path / "lab.json"
    fields = {**vars(settings.settings), "version": 1, "addresses": [f"127.0.0.1:{relay.port}", site.where]}
    path.write_text(json.dumps(fields))
    site.kill()
    site.start()
    yield relay
    relay.close()


def test_a_login_after_a_broken_line_is_the_same_join(site: LabSite, cut: Cut) -> None:
    site.join("bo")
    whole = cut.counted
    assert whole > 500
    for number, missing in enumerate((1, 20, 200)):
        line, name = site.invite(f"m{number}"), f"m{number}"
        cut.limit = whole - missing
        relay_only = json.loads(_decoded(line))["a"][0]
        broken = site.run(name, "login", typed=_for_address(line, relay_only), status=1)
        assert "no tracker at" in broken or "gone" in broken
        assert not site.place(name).exists()
        cut.limit = None
        site.run(name, "login", typed=line)
        assert site.who(name)["member"] == name
    assert list(site.members()) == ["bo", "m0", "m1", "m2", KEEPER]


def _decoded(line: str) -> bytes:
    import base64

    data = line.strip().partition(":")[2]
    return base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))


def _for_address(line: str, address: str) -> str:
    """The same invitation to one address."""
    import base64

    fields = {**json.loads(_decoded(line)), "a": [address]}
    return "rpcsys-invitation:" + base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


def test_the_next_address_is_tried(site: LabSite, cut: Cut) -> None:
    cut.limit = 5
    site.join("bo")
    assert site.who("bo")["member"] == "bo"


# Credentials that are damaged


@pytest.mark.parametrize(
    ("damage", "status", "words"),
    [
        (lambda path: path.chmod(0o644), 2, "others may read the credential"),
        (lambda path: path.write_text(path.read_text()[:100]), 2, "is no whole credential of a lab: remove it"),
        (lambda path: path.write_text('{"version": 2}'), 2, "newer rpcsys: upgrade this one"),
        (lambda path: path.write_text(""), 2, "is no whole credential"),
        (lambda path: path.write_bytes(os.urandom(5000)), 2, "is no whole credential"),
        (lambda path: path.unlink(), UNAUTHORIZED, "no credential here for a lab at 127.0.0.1:9190"),
        (lambda path: path.write_text(path.read_text().replace("sha256:", "sha256:0").replace('",\n', '",\n')), 2,
         "is no whole credential"),
    ],
    ids=["rights", "cut", "newer", "empty", "garbage", "gone", "pins"],
)  # fmt: skip
def test_a_damaged_credential_is_named(site: LabSite, damage, status: int, words: str) -> None:
    site.join("bo")
    damage(site.place("bo"))
    assert words in site.run("bo", "whoami", status=status)


def test_a_credential_of_another_lab_or_with_another_token_is_refused(site: LabSite, tmp_path: Path) -> None:
    bo, cy = site.join("bo"), site.join("cy")
    other = LabSite(tmp_path / "other", site.daemons)
    stranger = other.init()
    credential.write(str(site.place("bo")), bo._replace(pins=tuple(stranger["pins"])))
    assert "is not lab basement" in site.run("bo", "whoami", status=UNAUTHORIZED)
    credential.write(str(site.place("bo")), bo._replace(token=other.credential(KEEPER).token))
    assert "revoked or has expired" in site.run("bo", "whoami", status=UNAUTHORIZED)
    credential.write(str(site.place("bo")), bo._replace(pins=bo.pins[:1]))
    assert "is no whole credential" in site.run("bo", "whoami", status=2)
    credential.write(str(site.place("bo")), bo._replace(token=cy.token))
    assert site.who("bo")["member"] == "cy"  # the token says who one is


def test_a_tracker_without_tls_is_told_nothing(site: LabSite) -> None:
    site.kill()
    KEEPERS.pop(site.port)
    site.daemons.way = OPEN
    plain = site.daemons.tracker(port=site.port)
    refused = site.run("mo", "whoami", status=UNAUTHORIZED)
    KEEPERS.pop(site.port)
    assert f"{plain.where} does not speak TLS 1.3, and you have a credential of lab basement there" in refused
    assert refused.endswith(f"if that lab is gone, remove {site.place('mo')}\n")


def test_a_tracker_refuses_a_folder_that_others_may_read(tmp_path: Path, daemons: Daemons) -> None:
    site = LabSite(tmp_path, daemons)
    site.init()
    site.path.chmod(0o755)
    command = ["tracker", "--lab", str(site.path), "--port", str(free_port())]
    with site.begin(KEEPER, *command, stdin=subprocess.DEVNULL) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert f"others may read the lab's folder {site.path}: type chmod 700 {site.path}" in err


def test_a_proxy_refuses_a_credential_that_others_may_read(site: LabSite, tmp_path: Path) -> None:
    gate = tmp_path / "gate.json"
    site.run(KEEPER, "lab", "enrol", "--proxy", "gate", "--key", "rpi4", "--out", str(gate))
    gate.chmod(0o644)
    command = ["proxy", "--port", "0", "--tracker", site.where, "--lab", str(gate)]
    with site.begin("root", *command, stdin=subprocess.DEVNULL) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == f"rpcsys proxy: error: others may read the credential {gate}: type chmod 600 {gate}\n"
