"""Which lab one signs in to (with trackers and issuers: tests/live/test_lab_sign_in.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys.cli import own_credential, sign_in
from rpcsys.errors import ConfigError, UsageError
from rpcsys.link.credential import Credential
from rpcsys.wire.sign_in import LabLine

PINS = ("sha256:" + "1f" * 32, "sha256:" + "2e" * 32)
OWN = Credential("basement", "ann", ("lab-host:9190",), PINS, "rpcsys_p_abcdefgh_" + "A" * 43)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RPCSYS_LAB", "RPCSYS_CREDENTIAL", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_lab_is_known_by_its_line_or_by_a_credential() -> None:
    line = LabLine(OWN.trackers, PINS)
    assert sign_in.line_of(f" {line.text}\n") == line
    with pytest.raises(UsageError, match="no credential here for lab-host:9190; the first time, give the lab's line"):
        sign_in.line_of("lab-host:9190")
    own_credential.keep(own_credential.path_of("basement"), OWN.text())
    assert sign_in.line_of("lab-host:9190") == line
    with pytest.raises(ConfigError):
        sign_in.line_of("lab-host:x")


def test_a_file_is_read_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "invitation").write_text("rpcsys-invitation:x")
    with pytest.raises(UsageError, match=r"is a file; for an invitation in it, type: rpcsys login <.*invitation$"):
        sign_in.line_of(str(tmp_path / "invitation"))


def test_another_members_credential_of_the_lab_stays() -> None:
    place = own_credential.path_of("basement")
    sign_in._check_member(place, OWN)
    own_credential.keep(place, OWN.text())
    sign_in._check_member(place, OWN)
    with pytest.raises(UsageError, match=r"is the credential of ann, another member of lab basement: .* to be bo"):
        sign_in._check_member(place, OWN._replace(member="bo"))
