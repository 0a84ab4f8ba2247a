"""Credentials: their files, who may read them, and which one is for an address."""

from __future__ import annotations

import errno
import json
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ConfigError
from rpcsys.link import credential
from rpcsys.link.credential import Credential
from rpcsys.wire import tokens

PINS = ("sha256:" + "1f" * 32, "sha256:" + "2e" * 32)
TOKEN = tokens.new(tokens.HolderKind.PERSON).text
ANN = Credential("basement", "ann", ("lab-host:9190", "[fd00::1]:9190"), PINS, TOKEN)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("RPCSYS_LAB", "RPCSYS_CREDENTIAL", "CREDENTIALS_DIRECTORY", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(credential, "FILE_OF_BOARD", str(tmp_path / "etc" / "lab.json"))
    return tmp_path


def kept(one: Credential = ANN) -> str:
    """Write a credential of this user; its path."""
    path = credential.path_of(one.lab)
    credential.write(path, one)
    return path


def test_a_credential_is_read_back_and_its_owners_alone(home: Path) -> None:
    path = kept()
    assert path == str(home / "rpcsys" / "labs" / "basement.json")
    assert credential.read(path) == ANN._replace(path=path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    credential.write(path, ANN._replace(member="bo"))
    assert credential.read(path).member == "bo"
    assert os.listdir(os.path.dirname(path)) == ["basement.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_that_others_may_read_is_refused_with_what_to_type(mode: int) -> None:
    path = kept()
    os.chmod(path, mode)
    with pytest.raises(ConfigError, match=f"type chmod 600 {path}"):
        credential.read(path)


def test_a_check_reads_nothing(home: Path) -> None:
    """A server checks before it forks, and reads behind that."""
    path = kept()
    credential.check(path)
    Path(path).write_text("{")
    credential.check(path)
    os.chmod(path, 0o640)
    with pytest.raises(ConfigError, match=f"type chmod 600 {path}"):
        credential.check(path)
    with pytest.raises(ConfigError, match="No such file or directory; check its path"):
        credential.check(str(home / "none.json"))


def test_systemds_own_rights_are_accepted_in_its_folder_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept()
    os.chmod(path, 0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(home / "elsewhere"))
    with pytest.raises(ConfigError, match="others may read"):
        credential.read(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", os.path.dirname(path) + "/")
    assert credential.read(path) == ANN._replace(path=path)


def test_no_file_and_no_right_to_read_it_are_told(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the credential .*No such file"):
        credential.read(str(home / "none.json"))
    with pytest.raises(ConfigError, match=r"cannot read the credential .*Is a directory"):
        credential.read(str(home))


@given(st.integers(0, len(ANN.text()) - 3))
def test_a_file_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(ConfigError, match=r"lab\.json is no whole credential") as caught:
        credential.parse(ANN.text()[:length], "lab.json")
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"lab": ""}, {"lab": 3}, {"member": "a\nb"}, {"member": "a" * 257}, {"version": 0}, {"version": None},
        {"trackers": []}, {"trackers": "lab-host:9190"}, {"trackers": ["lab-host"]}, {"trackers": ["lab-host:99999"]},
        {"pins": []}, {"pins": [PINS[0]]}, {"pins": [PINS[0], PINS[1][7:]]}, {"pins": [*PINS, PINS[0]]},
        {"token": TOKEN[:-1]}, {"token": None},
        {"next_token": TOKEN[:-1]}, {"next_token": ""}, {"next_token": None},
    ],
)  # fmt: skip
def test_fields_of_another_form_are_refused_without_the_token(change) -> None:
    fields = {**json.loads(ANN.text()), **change}
    with pytest.raises(ConfigError, match="no whole credential") as caught:
        credential.parse(json.dumps(fields), "lab.json")
    assert TOKEN[11:] not in str(caught.value)


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda some: st.lists(some) | st.dictionaries(st.text(), some))
)
def test_any_json_is_refused(value) -> None:
    with pytest.raises(ConfigError):
        credential.parse(json.dumps(value), "lab.json")


def test_a_later_version_is_told_apart() -> None:
    fields = {"version": 2, "anything": "else"}
    with pytest.raises(ConfigError, match="newer rpcsys: upgrade"):
        credential.parse(json.dumps(fields), "lab.json")


def test_a_long_file_is_not_decoded() -> None:
    path = kept()
    with open(path, "a") as file:
        file.write(" " * credential.MAX_BYTES)
    with pytest.raises(ConfigError, match="no whole credential"):
        credential.read(path)


def test_a_full_disk_leaves_the_old_file() -> None:
    path = kept()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            credential.write(path, ANN._replace(member="bo"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert credential.read(path) == ANN._replace(path=path)
    assert os.listdir(os.path.dirname(path)) == ["basement.json"]


def test_a_credential_shows_no_token() -> None:
    assert repr(ANN) == "<credential of ann in lab basement>"
    assert TOKEN not in repr([ANN]) + str(ANN)


def test_a_next_token_is_kept_beside_the_first(home: Path) -> None:
    both = ANN._replace(next_token=tokens.new(tokens.HolderKind.PERSON).text)
    path = kept(both)
    assert credential.read(path) == both._replace(path=path)
    assert "next_token" not in ANN.text()


def test_a_service_has_its_own_where_the_file_is_read_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is enrolled anew: then the ID of its token is another."""
    path, state = kept(), home / "state"
    held = credential.read(path)
    renewed = held._replace(pins=PINS[::-1], token=tokens.parse(TOKEN)._replace(secret=tokens.new_secret()).text)
    written = credential.write

    def closed(where: str, changed: Credential) -> None:
        if where == path:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        written(where, changed)

    monkeypatch.setattr(credential, "write", closed)
    with pytest.raises(OSError, match="Read-only"):
        credential.rewrite(renewed)
    monkeypatch.setenv("STATE_DIRECTORY", f"{state}:/elsewhere")
    credential.rewrite(renewed)
    assert credential.read(path) == credential.again(held) == renewed
    written(path, ANN._replace(token=tokens.new(tokens.HolderKind.PERSON).text))
    assert credential.again(held).pins == PINS
    assert credential.again(ANN) == ANN


def test_a_credential_is_found_by_any_of_its_addresses() -> None:
    kept()
    kept(ANN._replace(lab="attic", trackers=("attic-host:9190",)))
    for host, port in (("lab-host", 9190), ("LAB-HOST.", 9190), ("fd00::1", 9190)):
        found = credential.for_tracker(host, port)
        assert found is not None
        assert found.lab == "basement"
    assert credential.for_tracker("lab-host", 9191) is None
    assert credential.for_tracker("other", 9190) is None


def test_without_any_file_there_is_none(home: Path) -> None:
    assert credential.for_tracker("lab-host", 9190) is None
    (home / "rpcsys").write_text("no folder")
    assert credential.for_tracker("lab-host", 9190) is None


def test_all_that_are_held_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert credential.held() == []
    board = ANN._replace(member="rpi4-3", token=tokens.new(tokens.HolderKind.BOARD).text)
    credential.write(credential.FILE_OF_BOARD, board)
    assert [one.member for one in credential.held()] == ["rpi4-3"]
    kept()
    kept(ANN._replace(lab="attic", trackers=("attic-host:9190",)))
    assert [one.lab for one in credential.held()] == ["attic", "basement"]
    monkeypatch.setenv("RPCSYS_CREDENTIAL", ANN._replace(lab="cellar").text())
    assert [one.lab for one in credential.held()] == ["cellar"]


def test_two_for_one_address_are_told() -> None:
    kept()
    kept(ANN._replace(lab="cellar"))
    with pytest.raises(ConfigError, match=r"basement.json and .*cellar.json are both for lab-host:9190: remove one"):
        credential.for_tracker("lab-host", 9190)


def test_a_damaged_one_is_told_whatever_the_address() -> None:
    path = kept()
    Path(path).write_text("{")
    with pytest.raises(ConfigError, match=r"basement\.json is no whole credential"):
        credential.for_tracker("elsewhere", 9190)


def test_the_environment_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    file = str(home / "ci.json")
    credential.write(file, ANN._replace(member="ci-file"))
    monkeypatch.setenv("RPCSYS_LAB", file)
    assert credential.for_tracker("lab-host", 9190).member == "ci-file"  # type: ignore[union-attr]
    monkeypatch.setenv("RPCSYS_CREDENTIAL", ANN._replace(member="ci-text").text())
    assert credential.for_tracker("lab-host", 9190).member == "ci-text"  # type: ignore[union-attr]
    monkeypatch.setenv("RPCSYS_CREDENTIAL", "nonsense")
    with pytest.raises(ConfigError, match="RPCSYS_CREDENTIAL is no whole credential"):
        credential.for_tracker("lab-host", 9190)


def test_a_boards_file_comes_last(home: Path) -> None:
    board = ANN._replace(member="rpi4-3", token=tokens.new(tokens.HolderKind.BOARD).text)
    credential.write(credential.FILE_OF_BOARD, board)
    assert credential.for_tracker("lab-host", 9190) == board._replace(path=credential.FILE_OF_BOARD)
    assert credential.for_tracker("other", 9190) is None
    kept()
    assert credential.for_tracker("lab-host", 9190) == ANN._replace(path=credential.path_of("basement"))
