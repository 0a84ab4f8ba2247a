"""A lab is made, checked and recovered on its tracker's host, by the commands that people type."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpcsys.cli import lab_host
from rpcsys.cli.commands import run_group
from rpcsys.link import credential
from rpcsys.tracker import policy
from rpcsys.tracker.access import Right
from rpcsys.tracker.audit import AuditLog
from rpcsys.tracker.lab_folder import LabFolder
from rpcsys.tracker.members import Members
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RPCSYS_LAB", "RPCSYS_CREDENTIAL", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(lab_host, "SETTINGS", tmp_path / "tracker.environment")
    monkeypatch.setattr(lab_host, "SERVICE_FOLDER", tmp_path / "service" / "lab")


class Command:
    """Runs ``rpcsys lab`` in this process."""

    def __init__(self, folder: Path, captured: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._captured = captured
        self.out = self.err = ""

    def __call__(self, *words: object) -> int:
        status = run_group(["lab", *map(str, words)])
        self.out, self.err = self._captured.readouterr()
        return status

    def made(self, *words: str) -> dict[str, Any]:
        """The line that ``init`` prints, for lab basement of ann."""
        flags = ("--dir", self.folder, "--host", "lab-host:9190", "--name", "basement", "--member", "ann")
        assert self("init", *flags, *words) == 0, self.err
        return dict(json.loads(self.out))

    def refused(self, *words: object) -> str:
        status = self(*words)
        assert (status, self.out) == (2, "")
        assert self.err.startswith("rpcsys: error: ")
        assert self.err.count("\n") == 1
        return self.err


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path / "lab", capsys)


def is_keeper(folder: Path, own: credential.Credential) -> bool:
    known = Members(folder)
    known.authenticate(tokens.parse(own.token), NOW)
    groups = {name: member.groups for name, member in known.by_name.items()}
    known.close()
    return Right.KEEPER in policy.load(folder / "policy.toml", own.lab, groups).rights(own.member)


def test_a_lab_is_made_with_a_keeper_and_what_to_type_next(lab: Command) -> None:
    line = lab.made()
    own = credential.read(line["credential"])
    folder = LabFolder(lab.folder)
    assert line == {
        "lab": "basement", "pins": list(folder.settings.pins), "member": "ann",
        "credential": credential.path_of("basement"), "spare": str(folder.spare_path),
    }  # fmt: skip
    assert (own.lab, own.member, own.trackers) == ("basement", "ann", ("lab-host:9190",))
    assert is_keeper(lab.folder, own)
    assert not folder.settings.open
    assert f"rpcsys tracker --lab {lab.folder}\n" in lab.err
    assert "rpcsys board add root@BOARD --key KEY --tracker lab-host:9190\n" in lab.err
    assert line["spare"] in lab.err
    assert own.token not in lab.out + lab.err


def test_an_open_lab_is_said_to_be_open(lab: Command) -> None:
    lab.made("--open")
    assert LabFolder(lab.folder).settings.open
    assert "rpcsys lab close" in lab.err
    assert "rpcsys board secure --all\n" in lab.err


def test_a_tracker_is_to_listen_where_desks_look_for_it(lab: Command) -> None:
    assert lab("init", "--dir", lab.folder, "--host", "lab-host:9200", "--name", "basement", "--member", "ann") == 0
    assert f"rpcsys tracker --lab {lab.folder} --port 9200\n" in lab.err
    assert "export RPCSYS_TRACKER=lab-host:9200\n" in lab.err


def test_a_lab_has_several_addresses_with_a_default_port(lab: Command) -> None:
    lab.made("--host", "lab-host.example.org", "--host", "[fd00::1]")
    assert LabFolder(lab.folder).settings.addresses == ("lab-host:9190", "lab-host.example.org:9190", "[fd00::1]:9190")


def test_a_lab_is_not_made_where_one_is(lab: Command) -> None:
    first = lab.made()
    refused = lab.refused("init", "--dir", lab.folder, "--host", "other:9190", "--member", "bo")
    assert f"has a lab already: rpcsys lab recover --dir {lab.folder}" in refused
    assert LabFolder(lab.folder).settings.pins == tuple(first["pins"])


@pytest.mark.parametrize("flags", [("--name", "basement", "--host", "h:1"), ("--name", "x", "--host", "LAB-host:9190")])
def test_a_credential_of_the_same_name_or_address_is_not_lost(lab: Command, flags: tuple[str, ...]) -> None:
    first = lab.made()
    text = Path(first["credential"]).read_text()
    refused = lab.refused("init", "--dir", lab.folder.with_name("second"), "--member", "ann", *flags)
    assert f"{first['credential']}: remove it if that lab is gone" in refused
    assert Path(first["credential"]).read_text() == text
    assert not lab.folder.with_name("second").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--host", "9190"], "has no host"),
        (["--host", "h:1", "--name", "a/b"], "no name for a lab"),
        (["--host", "h:1", "--member", "a b"], "'a b' is no name for a member: give --member NAME"),
        (["--host", "h:1", "--member", "tvm"], "'tvm' is no name for a member"),
        (["--host", "h:1", "--dir", "/proc/x/y"], "cannot write"),
        (["--host", "h:1", "--dir", ""], "the name is empty"),
    ],
)
def test_mistakes_leave_nothing(lab: Command, tmp_path: Path, flags: list[str], words: str) -> None:
    assert words in lab.refused("init", "--dir", lab.folder, "--member", "ann", *flags)
    assert list(tmp_path.iterdir()) == []


def test_a_credential_that_cannot_be_written_is_recovered(lab: Command, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("no folder")
    flags = ("--dir", lab.folder, "--host", "lab-host:9190", "--name", "basement", "--member", "ann")
    assert f"type: rpcsys lab recover --dir {lab.folder}" in lab.refused("init", *flags)
    (tmp_path / "config").unlink()
    assert lab("recover", "--dir", lab.folder, "--member", "ann") == 0
    assert is_keeper(lab.folder, credential.read(credential.path_of("basement")))


# With the packages


def test_the_packages_tracker_gets_the_lab(lab: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is the service's, and so is what is in it: the service has a user of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    nobody = pwd.getpwnam("nobody").pw_uid
    lab_host.SETTINGS.write_text("# flags\nTRACKER_FLAGS=--port 9190 --http-port 8190\nOTHER=1\n")
    lab_host.SERVICE_FOLDER.parent.mkdir()
    os.chown(lab_host.SERVICE_FOLDER.parent, nobody, -1)
    assert lab("init", "--host", "lab-host:9190", "--name", "basement", "--member", "ann") == 0, lab.err
    assert "systemctl restart rpcsys-tracker" in lab.err
    flags = f"--port 9190 --http-port 8190 --lab {lab_host.SERVICE_FOLDER}"
    assert lab_host.SETTINGS.read_text() == f"# flags\nTRACKER_FLAGS={flags}\nOTHER=1\n"
    for path in (lab_host.SERVICE_FOLDER, *lab_host.SERVICE_FOLDER.iterdir()):
        assert path.stat().st_uid == nobody


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "TRACKER_FLAGS=--lab DIR\n"),
        ("A=1", "A=1\nTRACKER_FLAGS=--lab DIR\n"),
        ('TRACKER_FLAGS="--port 1"\n', "TRACKER_FLAGS=--port 1 --lab DIR\n"),
        ("TRACKER_FLAGS=--lab DIR --port 1\n", "TRACKER_FLAGS=--lab DIR --port 1\n"),
    ],
)
def test_settings_of_any_form_get_the_flag_once(before: str, after: str) -> None:
    lab_host.SETTINGS.write_text(before)
    assert lab_host._set_flag(Path("DIR"))
    assert lab_host._set_flag(Path("DIR"))
    assert lab_host.SETTINGS.read_text().lstrip() == after


def test_settings_with_another_lab_stay(tmp_path: Path) -> None:
    lab_host.SETTINGS.write_text("TRACKER_FLAGS=--lab /other\n")
    assert not lab_host._set_flag(Path("DIR"))
    assert lab_host.SETTINGS.read_text() == "TRACKER_FLAGS=--lab /other\n"
    lab_host.SETTINGS.unlink()
    assert not lab_host._set_flag(Path("DIR"))


def test_a_user_has_the_lab_in_the_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert lab_host.default_folder() == tmp_path / "data" / "rpcsys" / "lab"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert lab_host.default_folder() == Path("/var/lib/rpcsys/lab")
    lab_host.SETTINGS.write_text("")
    assert lab_host.default_folder() == lab_host.SERVICE_FOLDER


# Rules


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[allow]]\nwho = ['ann']\nkey = ['rpi4']\n", "policy.toml, line 3: key must be one of who, keys"),
        ("[groups]\nempty = []\n", "policy.toml, line 2: empty must be a list of members: nobody is in it"),
        ("[tvm]\nfrom = ['10.1.0.0/99']\n", "policy.toml, line 2: from must be addresses and networks"),
        ("#" * (10 << 20), "policy.toml has more than 1,048,576 characters"),
        ("[groups]\na = ['b']\nb = ['a']\n", "policy.toml, line 2: a must be no part of itself (a > b > a)"),
        ("[groups]\nann = ['bo']\n", "policy.toml, line 2: ann must be no member's name"),
        ("who = [", "policy.toml is no TOML"),
        ("\0", "policy.toml is no TOML"),
    ],
    ids=range(8),
)
def test_a_mistake_in_the_rules_is_named_with_its_line(lab: Command, text: str, words: str) -> None:
    lab.made()
    (lab.folder / "policy.toml").write_text(text)
    assert words in lab.refused("check", "--dir", lab.folder)
    assert words in lab.refused("recover", "--dir", lab.folder, "--member", "bo")


def test_right_rules_are_counted_and_who_is_nobody_is_named(lab: Command) -> None:
    lab.made()
    assert lab("check", "--dir", lab.folder) == 0
    assert lab.out == f"{lab.folder / 'policy.toml'} is right: 2 rules, 1 member; keepers: ann\n"
    assert lab.err == ""
    rules = "[groups]\nboth = ['ann', 'gone']\n[[allow]]\nwho = ['both', 'ci-*', 'gost', 'bo']\n"
    (lab.folder / "policy.toml").write_text(rules)
    known = Members(lab.folder)
    known.invite("bo", HolderKind.PERSON, 4e9)
    known.close()
    assert lab("check", "--dir", lab.folder) == 0
    assert "keepers: nobody" in lab.out
    for name in ("ci-*", "gone", "gost"):
        assert f"warning: '{name}' is no group, and no member has that name" in lab.err
    assert "'bo'" not in lab.err
    assert "nobody is keeper; type: rpcsys lab recover" in lab.err


def test_a_folder_that_others_may_read_is_refused(lab: Command) -> None:
    lab.made()
    lab.folder.chmod(0o755)
    for command in (["check"], ["recover", "--member", "ann"]):
        assert f"type chmod 700 {lab.folder}" in lab.refused(*command, "--dir", lab.folder)
    lab.refused("check", "--dir", lab.folder / "none")


# Recovery


def test_who_is_locked_out_becomes_keeper_again(lab: Command) -> None:
    first = credential.read(lab.made()["credential"])
    known = Members(lab.folder)
    known.revoke("ann", NOW)
    known.close()
    assert lab("recover", "--dir", lab.folder, "--member", "ann") == 0
    line = json.loads(lab.out)
    own = credential.read(line["credential"])
    assert own.token != first.token
    assert own.pins == first.pins
    assert is_keeper(lab.folder, own)
    assert lab("recover", "--dir", lab.folder, "--member", "ann") == 0
    assert credential.read(line["credential"]).token != own.token
    recorded = [json.loads(each) for each in (lab.folder / "audit.jsonl").read_text().splitlines()]
    assert [(each["did"], each["on"]) for each in recorded] == [("recover", "ann")] * 2


def test_a_copy_without_its_key_comes_back_with_the_spare(lab: Command, tmp_path: Path) -> None:
    line = lab.made()
    first, kept = credential.read(line["credential"]), tmp_path / "spare.pem"
    os.replace(line["spare"], kept)
    for path in lab.folder.glob("key-*.pem"):
        path.unlink()
    (tmp_path / "text").write_bytes(b"\xff")
    refused = ("recover", "--dir", lab.folder, "--member", "ann", "--spare")
    assert "text is not a key" in lab.refused(*refused, tmp_path / "text")
    assert "no private key of rpcsys" in lab.refused(*refused, lab.folder / "policy.toml")
    assert credential.read(line["credential"]) == first
    assert lab("recover", "--dir", lab.folder, "--member", "ann", "--spare", kept) == 0
    own, folder = credential.read(line["credential"]), LabFolder(lab.folder)
    assert own.pins[0] == first.pins[1] == f"sha256:{folder.identity().pin}"
    assert own.pins[1] == f"sha256:{folder.spare().pin}"
    assert is_keeper(lab.folder, own)


def test_the_spare_is_not_put_in_service_under_a_running_tracker(lab: Command) -> None:
    line = lab.made()
    first = credential.read(line["credential"])
    recover = ("recover", "--dir", lab.folder, "--member", "ann")
    with contextlib.closing(AuditLog(lab.folder)):  # as a tracker has it
        assert "tracker runs: stop it first" in lab.refused(*recover, "--spare", line["spare"])
        assert LabFolder(lab.folder).settings.pins == first.pins
        assert credential.read(line["credential"]) == first
        assert lab(*recover) == 0
    assert lab(*recover, "--spare", line["spare"]) == 0


@pytest.mark.parametrize("step", range(1, 8))
def test_a_recovery_that_is_cut_off_is_completed_by_another(lab: Command, tmp_path: Path, step: int) -> None:
    line = lab.made()
    first, kept = credential.read(line["credential"]), tmp_path / "spare.pem"
    os.replace(line["spare"], kept)
    recover, left = ("recover", "--dir", lab.folder, "--member", "ann"), [step]

    def cut(whole: Callable[..., object]) -> Callable[..., object]:
        def part(*args: object, **more: object) -> object:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return whole(*args, **more)

        return part

    with pytest.MonkeyPatch.context() as killing:
        for owner, name in ((os, "replace"), (Members, "revoke"), (Members, "enrol"), (AuditLog, "write")):
            killing.setattr(owner, name, cut(getattr(owner, name)))
        assert lab(*recover, "--spare", kept) != 0
    if lab(*recover, "--spare", kept):
        assert "is in service already: leave out --spare" in lab.err
        assert lab(*recover) == 0
    own, folder = credential.read(line["credential"]), LabFolder(lab.folder)
    assert own.pins == folder.settings.pins
    assert own.pins[0] == first.pins[1] == f"sha256:{folder.identity().pin}"
    assert is_keeper(lab.folder, own)


def test_a_board_does_not_become_keeper(lab: Command) -> None:
    lab.made()
    known = Members(lab.folder)
    known.enrol("rpi4-3", HolderKind.BOARD, tokens.hash_of("x"), NOW, device_keys=["rpi4"])
    known.close()
    assert "is the name of a board or proxy" in lab.refused("recover", "--dir", lab.folder, "--member", "rpi4-3")


def test_rules_without_keepers_are_told_before_anything_changes(lab: Command) -> None:
    first = credential.read(lab.made()["credential"])
    (lab.folder / "policy.toml").write_text("[[allow]]\nwho = ['*']\nkeys = ['*']\n")
    assert "would not make ann a keeper: its [[allow]]" in lab.refused(
        "recover", "--dir", lab.folder, "--member", "ann"
    )
    known = Members(lab.folder)
    assert known.authenticate(tokens.parse(first.token), NOW).name == "ann"
    known.close()
