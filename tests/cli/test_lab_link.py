"""Which credential a command uses, and which lab it asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys.cli import lab_link
from rpcsys.errors import ConfigError, TrackerUnreachable, Unauthorized, UsageError
from rpcsys.link import credential
from rpcsys.link.credential import Credential
from rpcsys.wire import tokens
from tests.live.daemons import free_port

PINS = ("sha256:" + "1f" * 32, "sha256:" + "2e" * 32)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RPCSYS_LAB", "RPCSYS_CREDENTIAL", *lab_link._VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(credential, "FILE_OF_BOARD", str(tmp_path / "none"))


def kept(lab: str, *trackers: str) -> Credential:
    own = Credential(lab, "ann", trackers, PINS, tokens.new(tokens.HolderKind.PERSON).text)
    credential.write(credential.path_of(lab), own)
    return credential.read(credential.path_of(lab))


def test_the_only_lab_needs_no_address() -> None:
    own = kept("basement", "lab-host:9190", "other-host:1")
    assert lab_link.credential_for(None) == (own, [("lab-host", 9190), ("other-host", 1)])


def test_an_address_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    basement, attic = kept("basement", "lab-host:9190"), kept("attic", "attic-host:9190")
    assert lab_link.credential_for("attic-host") == (attic, [("attic-host", 9190)])
    monkeypatch.setenv("RPCSYS_TRACKER", "lab-host:9190")
    assert lab_link.credential_for(None) == (basement, [("lab-host", 9190)])
    assert lab_link.credential_for("attic-host:9190")[0] == attic
    monkeypatch.delenv("RPCSYS_TRACKER")
    with pytest.raises(UsageError, match=r"attic \(attic-host:9190\), basement \(lab-host:9190\): choose one with"):
        lab_link.credential_for(None)


def test_without_a_credential_one_is_told_to_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    how = "ask its keeper for an invitation, then type: rpcsys login"
    with pytest.raises(Unauthorized, match=f"no credential here for a lab at 127.0.0.1:9190: {how}"):
        lab_link.credential_for(None)
    kept("basement", "lab-host:9190")
    monkeypatch.setenv("TVM_TRACKER_HOST", "elsewhere")
    with pytest.raises(Unauthorized, match=f"a lab at elsewhere:9190: {how}"):
        lab_link.credential_for(None)


def test_a_damaged_credential_is_named() -> None:
    own = kept("basement", "lab-host:9190")
    Path(own.path).write_text(own.text()[:-20])
    with pytest.raises(ConfigError, match=r"basement\.json is no whole credential"):
        lab_link.credential_for(None)


def test_all_addresses_are_tried() -> None:
    ports = [free_port() for _ in range(2)]
    own = kept("basement", *(f"127.0.0.1:{port}" for port in ports))
    with pytest.raises(TrackerUnreachable, match=str(ports[1])), lab_link.lab_link(None):
        pass
    assert lab_link.credential_for(None)[0] == own
