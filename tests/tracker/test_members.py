"""The members of a lab: joining, coming in, renewed and revoked; what a kill and a full disk leave."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcsys.errors import ConfigError, Forbidden, Unauthorized
from rpcsys.tracker.lab_view import Member
from rpcsys.tracker.members import INVITED_S, Invited, Members
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind, Token

NOW = 1_800_000_000.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lab = tmp_path / "lab"
    lab.mkdir(mode=0o700)
    return lab


@pytest.fixture
def members(folder: Path) -> Iterator[Members]:
    with contextlib.closing(Members(folder)) as members:
        yield members


def joined(members: Members, name: str, kind: HolderKind = HolderKind.PERSON, now: float = NOW, **options) -> Token:
    """A new member's token."""
    invitation, secret = members.invite(name, kind, now, **options)
    token = Token(kind, invitation, tokens.new_secret())
    assert members.join(invitation, secret, token.hash, now).name == name
    return token


def test_one_joins_and_comes_in(members: Members) -> None:
    token = joined(members, "ann", groups=["desk"], lasts_s=90 * 86400.0)
    ann = members.authenticate(token, NOW + 1)
    expected = Member(
        "ann", HolderKind.PERSON, token.id, token.hash, None, (), ("desk",), NOW, NOW + 90 * 86400, None, None
    )
    assert ann == expected == members.by_name["ann"]


def test_a_board_has_its_keys(members: Members) -> None:
    token = joined(members, "rpi4-3", HolderKind.BOARD, device_keys=["rpi4", "lab:rpi4"])
    assert members.authenticate(token, NOW).keys == ("rpi4", "lab:rpi4")


def test_the_file_has_no_secret_and_is_its_owners(folder: Path, members: Members) -> None:
    invitation, secret = members.invite("ann", HolderKind.PERSON, NOW)
    token = Token(HolderKind.PERSON, invitation, tokens.new_secret())
    members.join(invitation, secret, token.hash, NOW)
    data = members.path.read_bytes()
    assert invitation.encode() in data
    assert secret.encode() not in data
    assert token.secret.encode() not in data
    assert members.path.stat().st_mode & 0o777 == 0o600


def test_members_are_there_after_a_restart(folder: Path, members: Members) -> None:
    token = joined(members, "ann")
    with contextlib.closing(Members(folder)) as again:
        assert again.authenticate(token, NOW).name == "ann"


def test_a_join_that_is_repeated_is_the_same_join(members: Members) -> None:
    invitation, secret = members.invite("ann", HolderKind.PERSON, NOW)
    token = Token(HolderKind.PERSON, invitation, tokens.new_secret())
    first = members.join(invitation, secret, token.hash, NOW)
    assert members.join(invitation, secret, token.hash, NOW + 5) == first
    with pytest.raises(Unauthorized, match="was used or is older than 24 h"):
        members.join(invitation, secret, tokens.hash_of("another"), NOW + 5)
    assert members.authenticate(token, NOW + 6) == first


def test_an_invitation_is_for_a_day_and_its_secret(members: Members) -> None:
    invitation, secret = members.invite("ann", HolderKind.PERSON, NOW)
    attempts = [(invitation, secret, NOW + INVITED_S), (invitation, secret[:-1], NOW), ("aaaaaaaa", secret, NOW)]
    for number, key, now in attempts:
        with pytest.raises(Unauthorized, match="ask for another"):
            members.join(number, key, tokens.hash_of("x"), now)
    assert members.by_name == {}
    assert members.join(invitation, secret, tokens.hash_of("x"), NOW + INVITED_S - 1).name == "ann"


def test_a_later_invitation_replaces_the_one_that_waits(members: Members) -> None:
    old = members.invite("ann", HolderKind.PERSON, NOW)
    with pytest.raises(Forbidden, match=r"ann has an invitation since 2 min, .*: --again replaces it"):
        members.invite("ann", HolderKind.PERSON, NOW + 120)
    new = members.invite("ann", HolderKind.PERSON, NOW, again=True)
    with pytest.raises(Unauthorized):
        members.join(*old, tokens.hash_of("x"), NOW)
    assert members.join(*new, tokens.hash_of("x"), NOW).name == "ann"


@pytest.mark.parametrize(
    "change", [{"kind": HolderKind.BOARD}, {"id": "aaaaaaaa"}, {"secret": "A" * 43}, {"secret": ""}]
)
def test_another_token_comes_in_as_nobody(members: Members, change) -> None:
    token = joined(members, "ann")
    with pytest.raises(Unauthorized, match="revoked or has expired"):
        members.authenticate(token._replace(**change), NOW)


def test_a_membership_expires_by_the_trackers_clock(members: Members) -> None:
    token = joined(members, "ann", lasts_s=60.0)
    assert members.authenticate(token, NOW + 59)
    with pytest.raises(Unauthorized):
        members.authenticate(token, NOW + 60)
    again = joined(members, "ann", now=NOW + 60)
    assert members.authenticate(again, NOW + 61).expires is None


def test_a_revoked_member_is_out_and_may_be_invited_again(members: Members) -> None:
    token = joined(members, "ann")
    with pytest.raises(Forbidden, match="ann is a member already: rpcsys lab renew ann, or rpcsys lab revoke ann"):
        members.invite("ann", HolderKind.PERSON, NOW)
    members.revoke("ann", NOW + 5)
    assert members.by_name["ann"].revoked == NOW + 5
    with pytest.raises(Unauthorized):
        members.authenticate(token, NOW + 6)
    new = joined(members, "ann")
    assert members.authenticate(new, NOW + 7).revoked is None
    with pytest.raises(Unauthorized):
        members.authenticate(token, NOW + 8)


def test_an_invitation_that_waits_is_revoked(members: Members) -> None:
    invitation = members.invite("ann", HolderKind.PERSON, NOW)
    members.revoke("ann", NOW)
    with pytest.raises(Unauthorized):
        members.join(*invitation, tokens.hash_of("x"), NOW)
    with pytest.raises(ConfigError, match="has no member ann: rpcsys lab members lists them"):
        members.revoke("ann", NOW)


def test_a_renewed_token_ends_the_old_one_when_it_is_used(members: Members) -> None:
    old = joined(members, "ann")
    new = old._replace(secret=tokens.new_secret())
    with pytest.raises(Unauthorized):
        members.authenticate(new, NOW)
    members.replace("ann", new.hash)
    members.note_uses({"ann": (old.hash, NOW)})
    assert members.authenticate(old, NOW).name == "ann"
    assert members.authenticate(new, NOW).name == "ann"
    members.note_uses({"ann": (new.hash, NOW)})
    assert members.authenticate(new, NOW).hash == new.hash
    assert members.authenticate(new, NOW).next_hash is None
    with pytest.raises(Unauthorized):
        members.authenticate(old, NOW)


def test_the_last_use_is_written_once_a_minute(members: Members) -> None:
    token = joined(members, "ann")
    for second in (0.0, 59.0, 60.0, 61.0):
        members.note_uses({"ann": (token.hash, NOW + second), "nobody": (token.hash, NOW)})
    assert members.by_name["ann"].used == NOW + 60


def test_a_board_is_enrolled_at_once(members: Members) -> None:
    enrolled = members.enrol("rpi4-3", HolderKind.BOARD, tokens.hash_of("x"), NOW, device_keys=["rpi4"])
    assert members.authenticate(Token(HolderKind.BOARD, enrolled.token, "x"), NOW) == enrolled
    assert members.enrol("rpi4-3", HolderKind.BOARD, tokens.hash_of("x"), NOW, device_keys=["rpi4"]) == enrolled
    for kind, secret in ((HolderKind.PROXY, "x"), (HolderKind.BOARD, "y")):
        with pytest.raises(Forbidden, match="member already"):
            members.enrol("rpi4-3", kind, tokens.hash_of(secret), NOW)
    members.revoke("rpi4-3", NOW)
    assert members.enrol("rpi4-3", HolderKind.BOARD, tokens.hash_of("x"), NOW + 1).token != enrolled.token


def test_invitations_that_wait_are_known(members: Members) -> None:
    members.invite("rpi4-3", HolderKind.BOARD, NOW, device_keys=["rpi4"])
    members.invite("bo", HolderKind.PERSON, NOW + 5, groups=["desk"])
    joined(members, "ann")
    assert members.invited(NOW + 5) == [
        Invited("bo", HolderKind.PERSON, (), ("desk",), NOW + 5 + INVITED_S),
        Invited("rpi4-3", HolderKind.BOARD, ("rpi4",), (), NOW + INVITED_S),
    ]
    assert [each.name for each in members.invited(NOW + INVITED_S)] == ["bo"]


def test_another_process_changes_are_seen(folder: Path, members: Members) -> None:
    assert not members.refresh()
    with contextlib.closing(Members(folder)) as command:
        token = joined(command, "ann")
    assert members.refresh()
    assert members.authenticate(token, NOW).name == "ann"
    assert not members.refresh()
    joined(members, "bo")
    assert not members.refresh()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("", {}, "'' is no name for a member"),
        ("a b", {}, "'a b' is no name for a member"),
        ("tvm", {}, "'tvm' is no name for a member"),
        ("ann", {"groups": ["a b"]}, "'a b' is no name for a group"),
        ("ann", {"device_keys": ["a b"]}, "'a b' is no device key"),
    ],
)
def test_invalid_names_are_told(members: Members, name: str, options, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        members.invite(name, HolderKind.PERSON, NOW, **options)


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o755])
def test_a_folder_that_others_may_read_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=f"type chmod 700 {folder}"):
        Members(folder)


def test_what_is_no_file_of_members_is_told(folder: Path) -> None:
    with pytest.raises(ConfigError, match="rpcsys lab init makes one"):
        Members(folder / "none")
    (folder / "lab.sqlite").write_bytes(b"garbage " * 1000)
    with pytest.raises(ConfigError, match=r"cannot use .*lab\.sqlite: file is not a database; restore it"):
        Members(folder)


def test_a_newer_file_is_told(folder: Path, members: Members) -> None:
    with contextlib.closing(sqlite3.connect(members.path)) as file:
        file.execute("PRAGMA user_version = 4")
    with pytest.raises(ConfigError, match="newer rpcsys"):
        Members(folder)


def test_a_file_of_the_first_version_is_brought_up_to_date(folder: Path, members: Members) -> None:
    token = joined(members, "ann")
    with contextlib.closing(sqlite3.connect(members.path)) as file:
        file.execute("ALTER TABLE members DROP COLUMN renew")
        file.execute("ALTER TABLE members DROP COLUMN subject")
        file.execute("PRAGMA user_version = 1")
    for attempt in range(2):
        with contextlib.closing(Members(folder)) as again:
            assert again.by_name["ann"].renew is (attempt > 0)
            assert again.renew("ann", NOW) == 1
            assert again.authenticate(token, NOW).renew is True


def test_a_full_disk_leaves_the_lab_as_it_was(members: Members) -> None:
    token = joined(members, "ann")
    invitation, secret = members.invite("bo", HolderKind.PERSON, NOW)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(ConfigError, match="nothing was changed"):
            members.join(invitation, secret, tokens.hash_of("x"), NOW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(members.by_name) == ["ann"]
    assert members.authenticate(token, NOW).name == "ann"
    assert members.join(invitation, secret, tokens.hash_of("x"), NOW).name == "bo"


JOINS = """
import sys
from rpcsys.tracker.members import Members
from rpcsys.wire.tokens import HolderKind, hash_of
members = Members(sys.argv[1])
for number in range(10_000):
    invitation, secret = members.invite(f"m{number}", HolderKind.PERSON, 1.0)
    members.join(invitation, secret, hash_of(f"secret {number}"), 1.0)
    print(number, flush=True)
"""


def test_a_kill_leaves_whole_members(folder: Path) -> None:
    """Each join that was reported is there, and at most one more."""
    process = subprocess.Popen([sys.executable, "-c", JOINS, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        reported = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait()
    reported = int(rest[-1]) if rest else reported
    with contextlib.closing(Members(folder)) as members:
        names = {f"m{number}" for number in range(reported + 1)}
        assert names <= set(members.by_name) <= names | {f"m{reported + 1}"}
        for number in range(reported + 1):
            assert members.by_name[f"m{number}"].hash == tokens.hash_of(f"secret {number}")


ISSUED = "https://id.example u-1"


def signed_in(members: Members, secret: str = "s", now: float = NOW, **changed) -> Member:
    fields = {"name": "ann", "subject": ISSUED, "digest": tokens.hash_of(secret), "groups": ["compiler"], **changed}
    return members.sign_in(
        fields.pop("name"), fields.pop("subject"), fields.pop("digest"), now, lasts_s=3600.0, **fields
    )


def holds(members: Members, member: Member, secret: str, now: float = NOW) -> bool:
    with contextlib.suppress(Unauthorized):
        return members.authenticate(Token(HolderKind.PERSON, member.token, secret), now).name == member.name
    return False


def test_one_signs_in_for_a_while_and_again(members: Members) -> None:
    ann = signed_in(members)
    assert (ann.groups, ann.expires, ann.subject) == (("compiler",), NOW + 3600, ISSUED)
    assert signed_in(members) == ann, "the same again has the same result"
    assert holds(members, ann, "s")
    assert not holds(members, ann, "s", NOW + 3600)
    later = signed_in(members, "t", NOW + 1800, groups=["desk"])
    assert (later.token, later.groups, later.expires) == (ann.token, ("desk",), NOW + 5400)
    assert holds(members, later, "s", NOW + 1801)
    assert holds(members, later, "t", NOW + 1801)
    members.note_uses({"ann": (tokens.hash_of("t"), NOW + 1801)})
    assert not holds(members, later, "s", NOW + 1802)
    assert holds(members, later, "t", NOW + 5399)
    afterwards = signed_in(members, "u", NOW + 9000)
    assert afterwards.token != ann.token
    assert holds(members, afterwards, "u", NOW + 9001)


def test_a_sign_in_takes_no_name_of_another(members: Members) -> None:
    joined(members, "bo")
    joined(members, "cy", lasts_s=10.0)
    members.invite("di", HolderKind.PERSON, NOW)
    ann = signed_in(members)
    for name, now in (("bo", NOW), ("cy", NOW + 100)):
        with pytest.raises(Forbidden, match=f"{name} is a member that this sign-in is not for: ask a keeper"):
            signed_in(members, name=name, now=now)
    with pytest.raises(Forbidden, match="di is invited"):
        signed_in(members, name="di")
    with pytest.raises(Forbidden, match="ann is a member that this sign-in is not for"):
        signed_in(members, "x", subject="https://id.example u-2")
    with pytest.raises(ConfigError, match="'a b' is no name"):
        signed_in(members, name="a b")
    assert members.by_name["ann"] == ann


def test_who_was_revoked_signs_in_no_more_until_invited(members: Members) -> None:
    signed_in(members)
    members.revoke("ann", NOW + 1)
    with pytest.raises(Forbidden, match="ann was revoked: ask a keeper for an invitation"):
        signed_in(members, "t", NOW + 2)
    token = joined(members, "ann", now=NOW + 3)
    assert members.authenticate(token, NOW + 4).subject is None
    with pytest.raises(Forbidden):
        signed_in(members, "t", NOW + 5)


def test_a_file_of_before_signing_in_is_taken_over(folder: Path) -> None:
    with contextlib.closing(Members(folder)) as members:
        joined(members, "ann")
        before = members.by_name["ann"]
    with contextlib.closing(sqlite3.connect(folder / "lab.sqlite")) as file:
        file.execute("ALTER TABLE members DROP COLUMN subject")
        file.execute("PRAGMA user_version = 2")
        file.commit()
    with contextlib.closing(Members(folder)) as members:
        assert members.by_name["ann"] == before
