"""Where a user's credential is, with sudo too, and what else is there."""

from __future__ import annotations

import getpass
import os
import pwd
from pathlib import Path

import pytest

from rpcsys.cli import own_credential
from rpcsys.errors import UsageError
from rpcsys.link import credential
from rpcsys.link.credential import Credential
from rpcsys.wire import tokens

PINS = ("sha256:" + "1f" * 32, "sha256:" + "2e" * 32)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SUDO_USER", raising=False)
    return tmp_path


def own(lab: str, *trackers: str) -> Credential:
    return Credential(lab, "ann", trackers, PINS, tokens.new(tokens.HolderKind.PERSON).text)


def test_a_file_is_the_users_alone(home: Path) -> None:
    place = own_credential.path_of("basement")
    assert place == str(home / "config" / "rpcsys" / "labs" / "basement.json")
    own_credential.keep(place, "text")
    assert os.stat(place).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(place)).st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("name", "found"), [("ann", "ann"), ("a b", ""), ("tvm", ""), ("x" * 65, "")])
def test_the_login_name_is_a_members_if_it_can_be(monkeypatch: pytest.MonkeyPatch, name: str, found: str) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: name)
    assert own_credential.login_name() == found


def test_a_user_without_a_name_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert own_credential.login_name() == ""


def test_with_sudo_the_file_is_that_of_who_typed_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not root's: the next command is typed without sudo."""
    nobody = pwd.getpwnam("nobody")
    user = pwd.struct_passwd((*nobody[:5], str(home), *nobody[6:]))
    monkeypatch.setattr(pwd, "getpwnam", {"nobody": user}.__getitem__)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    given: dict[str, int] = {}
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: given.__setitem__(str(path), uid))
    monkeypatch.setenv("SUDO_USER", "nobody")
    place = own_credential.path_of("basement")
    assert place == str(home / ".config" / "rpcsys" / "labs" / "basement.json")
    own_credential.keep(place, "text")
    assert own_credential.login_name() == "nobody"
    assert given == dict.fromkeys(
        (place, *(str(home / below) for below in (".config", ".config/rpcsys", ".config/rpcsys/labs"))), nobody.pw_uid
    )
    for name in ("root", "", "gone"):
        monkeypatch.setenv("SUDO_USER", name)
        assert own_credential.path_of("basement") == credential.path_of("basement")


def test_other_files_for_an_address_are_found(home: Path) -> None:
    for one in (own("a", "h:1", "h:2"), own("b", "h:3"), own("c", "H.:2")):
        own_credential.keep(own_credential.path_of(one.lab), one.text())
    Path(own_credential.path_of("damaged")).write_text("{")
    a, c = own_credential.path_of("a"), own_credential.path_of("c")
    assert own_credential.others(["h:2"], own_credential.path_of("new")) == [a, c]
    assert own_credential.others(["h:2"], a) == [c]
    assert own_credential.others(["h:9"], a) == own_credential.others(["h:2"], str(home / "none" / "x.json")) == []


def test_another_labs_credential_is_not_replaced(home: Path) -> None:
    place = own_credential.path_of("basement")
    ann = own("basement", "lab-host:9190")

    def keep(held: Credential) -> None:
        own_credential.keep_joined(place, held, {}, False, "type rpcsys login again")

    keep(ann)
    bo = ann._replace(member="bo", trackers=("LAB-HOST:9190", "other:1"))
    keep(bo)
    with pytest.raises(UsageError, match=r"basement\.json is a credential of another lab, at LAB-HOST:9190: move it"):
        keep(ann._replace(trackers=("elsewhere:9190",)))
    with pytest.raises(UsageError, match="another lab"):
        keep(ann._replace(lab="attic"))
    assert own_credential.known(place) == bo._replace(path=place)
    Path(place).write_text("{")
    assert own_credential.known(place) is None
    keep(ann)


def test_another_file_for_the_address_is_renamed(home: Path) -> None:
    before = own_credential.path_of("attic")
    own_credential.keep(before, own("attic", "lab-host:9190").text())
    own_credential.keep_joined(own_credential.path_of("basement"), own("basement", "lab-host:9190"), {}, False, "")
    assert sorted(os.listdir(os.path.dirname(before))) == ["attic.json.old", "basement.json"]
