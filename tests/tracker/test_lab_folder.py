"""The folder of a lab: made whole or not at all, kept from others, and its keys in turn."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rpcsys.errors import ConfigError
from rpcsys.link import identity
from rpcsys.tracker import lab_folder, policy
from rpcsys.tracker.access import Right
from rpcsys.tracker.lab_folder import LabFolder
from rpcsys.tracker.members import Members
from rpcsys.wire import tokens

ADDRESS = "lab-host:9190"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "lab"


@pytest.fixture
def credential(place: Path):
    return lab_folder.create(place, "basement", [ADDRESS], "ann")


def test_a_new_lab_has_a_keeper_whose_credential_its_tracker_knows(place: Path, credential) -> None:
    folder, known = LabFolder(place), Members(place)
    assert (credential.lab, credential.member, credential.trackers) == ("basement", "ann", (ADDRESS,))
    assert credential.pins == folder.settings.pins
    assert credential.pins[0] == f"sha256:{folder.identity().pin}"
    assert credential.pins[1] == f"sha256:{folder.spare().pin}"
    ann = known.authenticate(tokens.parse(credential.token), 0.0)
    rules = policy.parse(folder.policy_path.read_text(), "basement", {"ann": ann.groups, "bo": ()})
    assert Right.KEEPER in rules.rights("ann")
    assert rules.rights("bo") == {Right.SEE}
    assert rules.grant("bo", "rpi4")
    known.close()


def test_nothing_in_the_folder_is_for_others_and_no_token_is_in_it(place: Path, credential) -> None:
    secret = tokens.parse(credential.token).secret.encode()
    assert place.stat().st_mode & 0o777 == 0o700
    for path in place.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
        assert secret not in path.read_bytes(), path


def test_a_folder_that_others_may_read_is_refused_with_the_chmod(place: Path, credential) -> None:
    place.chmod(0o750)
    with pytest.raises(ConfigError, match=f"type chmod 700 {place}"):
        LabFolder(place)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', "x" * 10, '{"version": "1"}', "[" * 100_000])
def test_damaged_settings_are_named(place: Path, credential, text) -> None:
    (place / "lab.json").write_text(text)
    with pytest.raises(ConfigError, match=r"lab\.json is damaged|newer rpcsys"):
        LabFolder(place)


def test_a_newer_rpcsys_folder_is_told_apart(place: Path, credential) -> None:
    fields = json.loads((place / "lab.json").read_text())
    (place / "lab.json").write_text(json.dumps({**fields, "version": 2}))
    with pytest.raises(ConfigError, match="newer rpcsys: upgrade"):
        LabFolder(place)


def test_a_lab_is_not_made_over_another(place: Path, credential) -> None:
    with pytest.raises(ConfigError, match="has a lab already: rpcsys lab recover"):
        lab_folder.create(place, "other", [ADDRESS], "bo")
    assert LabFolder(place).settings.name == "basement"


def test_a_folder_with_something_in_it_is_refused(place: Path) -> None:
    place.mkdir()
    (place / "notes").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        lab_folder.create(place, "basement", [ADDRESS], "ann")
    assert [path.name for path in place.iterdir()] == ["notes"]


@pytest.mark.parametrize(
    ("name", "addresses", "founder"),
    [("a b", [ADDRESS], "ann"), ("x", [], "ann"), ("x", ["9190"], "ann"), ("x", [ADDRESS], "tvm"), ("x", ["h"], "ann")],
)
def test_invalid_names_and_addresses_leave_no_folder(place: Path, name, addresses, founder) -> None:
    with pytest.raises(ConfigError):
        lab_folder.create(place, name, addresses, founder)
    assert list(place.parent.iterdir()) == []


def test_a_full_disk_leaves_no_folder(place: Path, monkeypatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        lab_folder.create(place, "basement", [ADDRESS], "ann")
    assert list(place.parent.iterdir()) == []


def test_a_rotation_puts_the_spare_in_service(place: Path, credential) -> None:
    folder = LabFolder(place)
    old, spare = folder.identity(), folder.spare()
    settings = folder.rotate()
    again = LabFolder(place)
    assert again.settings == settings
    assert again.identity() == spare
    assert again.spare() not in (old, spare)
    assert len(list(place.glob("key-*.pem"))) == 2


def test_a_key_that_is_gone_or_damaged_is_named_with_what_to_do(place: Path, credential) -> None:
    folder = LabFolder(place)
    path = place / f"key-{folder.settings.pins[0][7:15]}.pem"
    for text, words in (
        (identity.new().pem(), "is not the tracker's key of lab basement: restore it"),
        ("garbage", r"is no private key of rpcsys .*: restore it"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"^{path} {words}"):
            folder.identity()
    path.unlink()
    with pytest.raises(ConfigError, match=f"cannot read {path}, the tracker's key of .*--spare FILE"):
        folder.identity()


def test_a_spare_that_is_kept_elsewhere_is_asked_for(place: Path, credential) -> None:
    folder = LabFolder(place)
    kept = folder.spare_path.read_text()
    folder.spare_path.unlink()
    with pytest.raises(ConfigError, match="the spare key of lab basement"):
        folder.rotate()
    with pytest.raises(ConfigError, match="not the spare key"):
        folder.rotate(identity.new().pem())
    assert LabFolder(place).settings == folder.settings
    folder.rotate(kept)
    assert LabFolder(place).identity() == identity.parse(kept)
    with pytest.raises(ConfigError, match="is in service already: leave out --spare"):
        folder.rotate(kept)


@pytest.mark.parametrize("writes", range(1, 4))
def test_a_rotation_that_is_cut_off_leaves_the_lab_before_or_after_it(
    place: Path, credential, monkeypatch, writes
) -> None:
    folder = LabFolder(place)
    replaced, left = os.replace, [writes]

    def cut(source, target) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        replaced(source, target)

    monkeypatch.setattr(os, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        folder.rotate()
    monkeypatch.undo()
    again = LabFolder(place)
    assert again.settings.pins == credential.pins
    again.rotate()
    assert LabFolder(place).identity().pin == credential.pins[1].partition(":")[2]


def test_an_open_lab_is_closed_in_one_step(place: Path) -> None:
    lab_folder.create(place, "basement", [ADDRESS], "ann", open_too=True)
    folder = LabFolder(place)
    assert folder.settings.open
    folder.change(replace(folder.settings, open=False))
    assert not LabFolder(place).settings.open
