"""The messages about a lab's members: what each changes, answers and records, and what the service is told of it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcsys.errors import ConfigError, Forbidden, Unauthorized
from rpcsys.tracker import lab_folder
from rpcsys.tracker.audit import AuditEntry, AuditLog
from rpcsys.tracker.lab_folder import LabFolder
from rpcsys.tracker.lab_view import Member
from rpcsys.tracker.members import Members
from rpcsys.tracker.membership import MAX_BYTES, Changes, Membership, SignedIn
from rpcsys.wire import membership, tokens
from rpcsys.wire.control import Answer, Ask
from rpcsys.wire.tokens import HolderKind

NOW = 1_900_000_000.0  # later than the lab is made
DIGEST = tokens.hash_of("a secret")


class Lab:
    """A lab with ann, its keeper."""

    def __init__(self, folder: Path) -> None:
        self.ann_token = tokens.parse(lab_folder.create(folder, "basement", ["lab-host:9190"], "ann").token)
        self.folder, self.members, self.audit = LabFolder(folder), Members(folder), AuditLog(folder)
        self.membership = Membership(self.folder, self.members, self.audit)
        self.ids = 0

    @property
    def ann(self) -> Member:
        return self.members.by_name["ann"]

    def ask(self, message: type[Ask], /, member: Member | None = None, now: float = NOW, **fields) -> Answer:
        self.ids += 1
        answer = self.membership.answer(member or self.ann, message(self.ids, **fields), now, "10.0.0.7")
        assert answer.id == self.ids
        assert json.dumps(answer.to_json())
        return answer

    def ok(self, message: type[Ask], /, **fields) -> dict:
        answer = self.ask(message, **fields)
        assert answer.ok, answer
        return dict(answer.fields)

    def joined(self, name: str, now: float = NOW, **fields) -> tokens.Token:
        invitation = tokens.parse_invitation(self.ok(membership.Invite, name=name, now=now, **fields)["invitation"])
        token = tokens.Token(fields.get("kind", HolderKind.PERSON), invitation.id, tokens.new_secret())
        assert self.membership.join(f"{invitation.id}.{invitation.secret}", token.hash, now, "10.0.0.8").name == name
        return token

    def changes(self) -> list[Changes]:
        found = list(self.membership.changes)
        self.membership.changes.clear()
        return found

    def recorded(self) -> list[dict]:
        lines = map(json.loads, self.audit.path.read_text().splitlines())
        return [{name: text for name, text in line.items() if name not in ("at", "prev")} for line in lines]

    def close(self) -> None:
        self.members.close()
        self.audit.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with contextlib.closing(Lab(tmp_path / "lab")) as lab:
        yield lab


def test_every_message_has_an_answer(lab: Lab) -> None:
    examples = {
        "name": "bo", "kind": HolderKind.PROXY, "hash": DIGEST, "open": True,
    }  # fmt: skip
    for kind in membership.MESSAGES:
        wanted = {name for name, _, required in kind._fields if required and name != "id"}
        answer = lab.ask(kind, **{name: examples[name] for name in wanted})
        assert answer.ok or answer.message


def test_one_is_invited_joins_and_is_told_who_he_is(lab: Lab) -> None:
    token = lab.joined("bo", groups=("compiler",), lasts_s=60.0)
    bo = lab.members.authenticate(token, NOW)
    assert lab.ok(membership.WhoAmI, member=bo) == {
        "lab": "basement", "member": "bo", "kind": "p", "groups": ("compiler",), "keys": (),
        "joined": NOW, "expires": NOW + 60, "used": None,
    }  # fmt: skip
    assert lab.changes() == []
    assert lab.recorded() == [
        {"who": "ann", "from": "10.0.0.7", "did": "invite", "on": "bo"},
        {"who": "bo", "from": "10.0.0.8", "did": "join"},
    ]


def test_an_invitation_has_the_labs_addresses_and_pins(lab: Lab) -> None:
    invitation = tokens.parse_invitation(lab.ok(membership.Invite, name="bo")["invitation"])
    assert invitation.addresses == ("lab-host:9190",)
    assert invitation.pins == lab.folder.settings.pins


@pytest.mark.parametrize("text", ["", ".", "x", "aaaaaaaa.", "aaaaaaaa.B", "a" * 5000])
def test_what_is_no_invitation_joins_nobody(lab: Lab, text: str) -> None:
    with pytest.raises(Unauthorized, match="ask for another"):
        lab.membership.join(text, DIGEST, NOW)
    assert lab.recorded() == []
    assert lab.changes() == []


def test_a_join_without_a_hash_is_refused(lab: Lab) -> None:
    with pytest.raises(Unauthorized, match="no hash"):
        lab.membership.join("aaaaaaaa.x", "the secret itself", NOW)


def test_a_board_is_enrolled_and_the_same_again_is_the_same(lab: Lab) -> None:
    wanted = {"name": "rpi4-3", "kind": HolderKind.BOARD, "hash": DIGEST, "keys": ("rpi4",)}
    first = lab.ok(membership.Enrol, **wanted)
    assert first == lab.ok(membership.Enrol, **wanted)
    board = lab.members.by_name["rpi4-3"]
    assert first == {
        "lab": "basement", "trackers": ("lab-host:9190",), "pins": lab.folder.settings.pins, "token": board.token,
    }  # fmt: skip
    assert (board.kind, board.keys) == (HolderKind.BOARD, ("rpi4",))
    other = lab.ask(membership.Enrol, **{**wanted, "hash": tokens.hash_of("another")})
    assert other.error == "Forbidden"
    assert "is a member already" in other.message


def test_an_invitation_that_waits_is_replaced_where_that_is_said(lab: Lab) -> None:
    """One for a person is not: who may enrol boards could take its name."""
    lab.ok(membership.Invite, name="bo")
    enrolment = {"name": "bo", "kind": HolderKind.BOARD, "hash": DIGEST, "keys": ("rpi4",)}
    for again in (False, True):
        refused = lab.ask(membership.Enrol, now=NOW + 7200, again=again, **enrolment)
        assert refused.error == "Forbidden"
        assert refused.message == (
            "bo has an invitation since 120 min, and has not used it yet: rpcsys lab revoke bo ends it"
        )
    refused = lab.ask(membership.Invite, name="bo")
    assert refused.message.endswith("has not used it yet: --again replaces it")
    lab.ok(membership.Invite, name="bo", again=True)
    assert [line["did"] for line in lab.recorded()] == ["invite", "enrol", "enrol again", "invite", "invite again"]


def test_an_enrolment_ends_an_invitation_of_that_name(lab: Lab) -> None:
    text = lab.ok(membership.Invite, name="gate", kind=HolderKind.PROXY)["invitation"]
    lab.ok(membership.Enrol, name="gate", kind=HolderKind.PROXY, hash=DIGEST, again=True)
    invitation = tokens.parse_invitation(text)
    with pytest.raises(Unauthorized):
        lab.membership.join(f"{invitation.id}.{invitation.secret}", tokens.hash_of("x"), NOW)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (membership.Enrol, {"name": "mo", "kind": HolderKind.PERSON, "hash": DIGEST}, "people are not enrolled"),
        (membership.Enrol, {"name": "b", "kind": HolderKind.BOARD, "hash": DIGEST}, "names its keys"),
        (membership.Invite, {"name": "b", "kind": HolderKind.BOARD}, "names its keys"),
        (membership.Invite, {"name": "bo", "keys": ("k",)}, "only boards and proxies have keys"),
        (membership.Invite, {"name": "a b"}, "is no name for a member"),
        (membership.Invite, {"name": "ann"}, "ann is a member already"),
        (membership.Invite, {"name": "keepers"}, "keepers is a group in lab basement: choose another"),
        (membership.Invite, {"name": "bo", "groups": ("bo",)}, "bo is a group in lab basement"),
        (membership.Invite, {"name": "bo", "groups": ("desk", "ann")}, "ann is a member of lab basement: choose"),
        (membership.Enrol, {"name": "keepers", "kind": HolderKind.PROXY, "hash": DIGEST}, "keepers is a group"),
        (membership.Revoke, {"name": "nobody"}, "no member nobody"),
        (membership.RenewToken, {"name": "nobody"}, "no member nobody"),
        (membership.Rotate, {"spare": "x"}, "no private key"),
    ],
)
def test_what_is_refused_changes_nothing_and_is_recorded(lab: Lab, kind, fields, words: str) -> None:
    before = dict(lab.members.by_name), lab.folder.settings
    answer = lab.ask(kind, **fields)
    assert not answer.ok
    assert words in answer.message
    assert (dict(lab.members.by_name), lab.folder.settings) == before
    assert lab.changes() == []
    (line,) = lab.recorded()
    assert line["result"] == answer.message
    assert line["on"] == fields.get("name", line["on"]) if "name" in fields else "on" not in line


def test_a_groups_name_in_the_rules_is_no_members(lab: Lab) -> None:
    lab.folder.policy_path.write_text("[groups]\nguests = ['x']\n")
    assert "guests is a group in lab basement" in lab.ask(membership.Invite, name="guests").message
    lab.folder.policy_path.write_text("damaged")
    lab.ok(membership.Invite, name="guests")


def test_who_is_revoked_is_out(lab: Lab) -> None:
    token = lab.joined("bo")
    lab.ok(membership.Revoke, name="bo")
    with pytest.raises(Unauthorized):
        lab.members.authenticate(token, NOW)


def test_a_renewed_member_is_asked_until_the_new_token_was_used(lab: Lab) -> None:
    old = lab.joined("bo")
    lab.joined("cy")
    assert lab.ok(membership.RenewToken, name="bo") == {"asked": 1}
    bo = lab.members.authenticate(old, NOW)
    assert bo.renew
    assert not lab.members.by_name["cy"].renew
    new = old._replace(secret=tokens.new_secret())
    lab.ok(membership.ReplaceToken, member=bo, hash=new.hash)
    assert lab.members.authenticate(old, NOW).renew
    assert not lab.members.authenticate(new, NOW).renew
    lab.members.note_uses({"bo": (new.hash, NOW)})
    with pytest.raises(Unauthorized):
        lab.members.authenticate(old, NOW)
    lab.ok(membership.Revoke, name="cy")
    assert lab.ok(membership.RenewToken, name=membership.EVERYONE) == {"asked": 2}
    assert not lab.members.by_name["cy"].renew
    gone = lab.ask(membership.RenewToken, name="cy")
    assert "cy is no member any more: rpcsys lab invite cy" in gone.message


@pytest.mark.parametrize(("kind", "keys", "told"), [(HolderKind.BOARD, ["rpi4"], ["b1"]), (HolderKind.PERSON, [], [])])
def test_a_board_is_to_use_its_new_token_at_once(lab: Lab, kind: HolderKind, keys: list[str], told: list[str]) -> None:
    """It would stay connected for months, and its old token valid."""
    held = lab.members.authenticate(lab.joined("b1", kind=kind, keys=keys), NOW)
    lab.changes()
    lab.ok(membership.ReplaceToken, member=held, hash=DIGEST)
    assert lab.changes() == [Changes(renewed=name) for name in told]


def test_a_rotation_names_whom_a_second_one_would_lock_out(lab: Lab) -> None:
    pins = lab.folder.settings.pins
    lab.joined("bo")
    lab.joined("cy")
    answer = lab.ok(membership.Rotate, now=NOW + 10)
    assert answer["pins"][0] == pins[1]
    assert Path(answer["spare"]) == lab.folder.spare_path
    assert lab.changes()[-1] == Changes(pins=True)
    lab.members.note_uses({"ann": ("", NOW + 11)})
    lab.members.note_uses({"bo": ("", NOW + 11)})
    lab.joined("di", now=NOW + 12)
    refused = lab.ask(membership.Rotate, now=NOW + 20)
    assert refused.error == "Forbidden"
    assert "connected since the last one: cy; " in refused.message
    assert lab.ok(membership.Rotate, force=True, now=NOW + 20)["pins"][0] == answer["pins"][1]


def test_a_use_right_after_a_rotation_counts(lab: Lab) -> None:
    """It does, though the time of a member's use is written once a minute."""
    lab.members.note_uses({"ann": ("", NOW)})
    lab.ok(membership.Rotate, now=NOW + 1)
    lab.members.note_uses({"ann": ("", NOW + 2)})
    lab.ok(membership.Rotate, now=NOW + 3)
    lab.members.noted_from = 0.0
    Membership(LabFolder(lab.folder.path), lab.members, None)
    assert lab.members.noted_from == NOW + 3


def test_a_lab_is_opened_and_closed(lab: Lab) -> None:
    for opened in (True, False):
        lab.ok(membership.SetOpen, open=opened)
        assert LabFolder(lab.folder.path).settings.open is opened
    assert [line["did"] for line in lab.recorded()] == ["open", "close"]


def test_members_and_invitations_are_listed_in_pages(lab: Lab) -> None:
    for name in ("bo", "cy", "di"):
        lab.joined(name)
    lab.ok(membership.Revoke, name="cy")
    for name in ("cy", "ed"):
        lab.ok(membership.Invite, name=name, kind=HolderKind.BOARD, keys=("rpi4",))
    rows, after, pages = [], "", 0
    while pages == 0 or after:
        page = lab.ok(membership.ListMembers, after=after, limit=2)
        rows += page["members"]
        after, pages = page["next"], pages + 1
    assert [row["name"] for row in rows] == ["ann", "bo", "cy", "di", "ed"]
    assert pages == 3
    assert rows == lab.ok(membership.ListMembers)["members"]
    assert (rows[2]["revoked"], rows[2]["invited_until"]) == (NOW, NOW + 86400)
    assert rows[4] == {
        "name": "ed", "kind": "b", "groups": (), "keys": ("rpi4",), "invited_until": NOW + 86400,
    }  # fmt: skip
    assert "hash" not in json.dumps(rows)


def test_pages_of_members_with_many_keys_fit_a_frame(lab: Lab) -> None:
    for number in range(50):
        keys = tuple(f"{key}-" + "\u20ac" * 250 for key in range(64))
        lab.ok(membership.Enrol, name=f"b{number}", kind=HolderKind.BOARD, hash=DIGEST, keys=keys)
    names, after = [], ""
    while not names or after:
        page = lab.ok(membership.ListMembers, after=after)
        assert len(json.dumps(page)) < MAX_BYTES + (200 << 10) < 1 << 20
        names += [row["name"] for row in page["members"]]
        after = page["next"]
    assert len(names) == 51


def test_the_audit_log_is_read_in_pages(lab: Lab) -> None:
    lab.audit.write([AuditEntry(NOW, "ann", "10.0.0.7", f"did {number}") for number in range(25)])
    lines, start = [], 1
    while start:
        page = lab.ok(membership.Audit, start=start, limit=10)
        lines += page["lines"]
        start = page["next"]
    assert lines == lab.audit.path.read_text().splitlines()
    assert lab.recorded()[-1]["did"] == "did 24"


def test_an_audit_log_that_cannot_be_read_is_told(lab: Lab) -> None:
    lab.audit.path.unlink()
    assert "cannot read its audit log: No such file" in lab.ask(membership.Audit).message


def test_a_file_of_members_that_cannot_be_read_is_told(lab: Lab) -> None:
    lab.members.close()
    for message in (membership.ListMembers, membership.Revoke):
        fields = {"name": "ann"} if message is membership.Revoke else {}
        assert "cannot read its members: Cannot operate on a closed" in lab.ask(message, **fields).message


def test_a_full_audit_log_is_logged_and_stops_nobody(lab: Lab, caplog, monkeypatch) -> None:
    def full(entries) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lab.audit, "write", full)
    lab.ok(membership.Invite, name="bo")
    assert "invite by ann is not in the audit log: No space left on device" in caplog.text


def test_other_threads_see_whole_members_meanwhile(lab: Lab) -> None:
    """The event loop's thread looks members up while the worker changes them."""
    stop, wrong = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            try:
                assert lab.members.by_name["ann"].token == lab.members.authenticate(lab.ann_token, NOW).token
            except Exception as error:
                wrong.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(30):
            lab.joined(f"m{number}")
    finally:
        stop.set()
        reader.join()
    assert wrong == []


def test_one_signs_in_with_groups_that_nobody_has_as_a_name(lab: Lab) -> None:
    lab.joined("bo")
    lab.changes()
    who = SignedIn("https://id.example u-1", "cy", ("compiler", "bo"))
    made = lab.membership.sign_in(who, DIGEST, 3600.0, NOW, "10.0.0.8")
    assert (made.name, made.groups, made.expires) == ("cy", ("compiler",), NOW + 3600)
    assert lab.changes() == []
    entry = {"who": "cy", "from": "10.0.0.8", "did": "sign in", "on": "https://id.example u-1"}
    assert lab.recorded()[-1] == entry


def test_a_sign_in_that_is_refused_is_recorded_and_changes_nothing(lab: Lab) -> None:
    for name, words in (("ann", "a member that this sign-in is not for"), ("keepers", "keepers is a group in lab")):
        with pytest.raises((Forbidden, ConfigError), match=words):
            lab.membership.sign_in(SignedIn("https://id.example u-1", name, ()), DIGEST, 3600.0, NOW)
        assert words in lab.recorded()[-1]["result"]
    with pytest.raises(Unauthorized, match="no hash"):
        lab.membership.sign_in(SignedIn("https://id.example u-1", "cy", ()), "x", 3600.0, NOW)
    assert lab.changes() == []
    assert set(lab.members.by_name) == {"ann"}
