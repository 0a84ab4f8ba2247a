"""The lab of a running tracker: what it reads again, and whom it lets in."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcsys.errors import ConfigError, Unauthorized
from rpcsys.tracker import lab_folder
from rpcsys.tracker.audit import AuditEntry
from rpcsys.tracker.lab import RunningLab
from rpcsys.tracker.lab_folder import LabFolder
from rpcsys.tracker.members import Members
from rpcsys.wire import tokens
from rpcsys.wire.control import Hello
from rpcsys.wire.tokens import HolderKind

NOW = 1_000_000.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "lab"


@pytest.fixture
def keeper(place: Path):
    return lab_folder.create(place, "basement", ["lab-host:9190"], "mo")


@pytest.fixture
def lab(place: Path, keeper) -> Iterator[RunningLab]:
    with contextlib.closing(RunningLab(place)) as lab:
        yield lab


def test_a_member_is_known_by_its_token(lab: RunningLab, keeper) -> None:
    assert lab.holder(Hello("1", (), None, keeper.token), NOW).name == "mo"
    with pytest.raises(
        Unauthorized, match=r"lab at lab-host:9190 wants credentials.*a server, a proxy: give its file with --lab"
    ):
        lab.holder(Hello("1"), NOW)
    with pytest.raises(Unauthorized, match="no token of a lab"):
        lab.holder(Hello("1", (), None, "x"), NOW)


def test_a_use_is_noted(lab: RunningLab, keeper) -> None:
    lab.holder(Hello("1", (), None, keeper.token), NOW)
    lab.look_again().result(30)
    assert lab.members.by_name["mo"].used == NOW


def test_nothing_new_is_no_change(lab: RunningLab) -> None:
    assert not lab.look_again().result(30).view
    assert not lab.look_again().result(30).view


def test_new_members_boards_and_rules_are_seen(place: Path, lab: RunningLab) -> None:
    with contextlib.closing(Members(place)) as command:
        invitation, secret = command.invite("rpi4-3", HolderKind.BOARD, NOW, device_keys=("rpi4",))
        command.join(invitation, secret, tokens.hash_of("x"), NOW)
    assert lab.look_again().result(30).view
    assert lab.view.machines == {"rpi4-3": HolderKind.BOARD}
    lab.folder.policy_path.write_text('[[allow]]\nwho = ["bo"]\nkeys = ["rpi4"]\n')
    assert not lab.look_again().result(30).view
    assert lab.look_again().result(30).view
    assert lab.access.grant("bo", "rpi4")
    assert not lab.access.grant("mo", "rpi4")


def test_rules_that_are_being_written_change_nothing(lab: RunningLab) -> None:
    before, rules = lab.access, '[[allow]]\nwho = ["bo"]\nkeys = ["rpi4"]\n'
    with open(lab.folder.policy_path, "w") as file:
        assert not lab.look_again().result(30).view
        assert lab.access is before
        file.write(rules)
    assert not lab.look_again().result(30).view
    assert lab.access is before
    assert lab.look_again().result(30).view
    assert lab.access.grant("bo", "rpi4")


def test_the_audit_logs_newest_hash_is_logged_on_a_machine_that_has_just_started(
    place: Path, keeper, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    with caplog.at_level("INFO"), contextlib.closing(RunningLab(place)) as lab:
        lab.trail.note(AuditEntry(NOW, "mo", "", "drain", "board"))
        lab.look_again().result(30)
        lab.look_again().result(30)
        assert [record.getMessage() for record in caplog.records if "newest hash" in record.getMessage()] == [
            f"the newest hash of the audit log of lab basement is {lab.audit.head}"
        ]


def test_a_mistake_in_the_rules_changes_nothing_and_is_told_once(place: Path, lab: RunningLab, caplog) -> None:
    before = lab.access
    lab.folder.policy_path.write_text("[[allow]]\n")
    assert not lab.look_again().result(30).view
    assert not lab.look_again().result(30).view
    assert not lab.look_again().result(30).view
    assert lab.access is before
    (told,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "line 1: who must be a list" in told.getMessage()
    assert "the rules stay as they were" in told.getMessage()


def test_rules_with_a_mistake_at_the_start_are_an_error(place: Path, keeper) -> None:
    LabFolder(place).policy_path.write_text("[[allow")
    with pytest.raises(ConfigError, match=r"policy\.toml is no TOML"):
        RunningLab(place)
    LabFolder(place).policy_path.unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*policy\.toml"):
        RunningLab(place)


def test_those_whose_membership_has_ended_are_found(place: Path, lab: RunningLab) -> None:
    mo = lab.members.by_name["mo"]
    assert lab.gone([mo], NOW) == []
    with contextlib.closing(Members(place)) as command:
        command.revoke("mo", NOW)
    lab.look_again().result(30)
    assert lab.gone([mo], NOW) == ["mo"]


def test_those_who_hold_leases_and_are_no_members_any_more_are_found(place: Path, lab: RunningLab) -> None:
    with contextlib.closing(Members(place)) as members:
        members.enrol("ann", HolderKind.PERSON, tokens.hash_of("x"), NOW)
        lab.look_again().result(30)
        names = ["ann", "mo", "ann (unproven)", "stranger"]
        assert lab.ended(names, NOW) == []
        members.revoke("ann", NOW)
    lab.look_again().result(30)
    assert lab.ended(names, NOW) == ["ann"]


def test_peers_without_a_credential_are_told_what_to_type(place: Path, lab: RunningLab) -> None:
    assert "rpcsys connect" in lab.refusal("10.9.0.7")
    assert "add 10.9.0.7 to [tvm] from" in lab.refusal("10.9.0.7")
    lab.folder.policy_path.write_text('[tvm]\nfrom = ["10.9.0.0/16"]\n')
    lab.look_again().result(30)
    lab.look_again().result(30)
    assert lab.refusal("10.9.0.7") == ""
    assert lab.refusal("10.8.0.7")
