"""How an invitation is read, and what is kept of an attempt that broke off (with trackers: tests/live)."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rpcsys.cli import login
from rpcsys.cli.commands import run_group
from rpcsys.link.credential import Credential
from rpcsys.wire import tokens
from rpcsys.wire.tokens import Invitation
from tests.live.daemons import free_port

PINS = ("sha256:" + "1f" * 32, "sha256:" + "2e" * 32)
OWN = Credential("basement", "ann", ("lab-host:9190",), PINS, "rpcsys_p_abcdefgh_" + "A" * 43)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RPCSYS_LAB", "RPCSYS_CREDENTIAL", "RPCSYS_TRACKER", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "rpcsys" / "labs"


@pytest.fixture
def invitation() -> Invitation:
    """To a tracker that does not run."""
    return tokens.invitation([f"127.0.0.1:{free_port()}"], PINS)


def typed(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rpcsys", "login", *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)


def test_at_a_terminal_it_is_not_shown_and_may_have_line_breaks(home: Path, invitation: Invitation) -> None:
    lines = textwrap.wrap(invitation.text, 72)
    assert len(lines) > 2
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rpcsys", "login"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        shown = b""
        while b"not shown" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, "\n".join(lines).encode() + b"\n")
        try:
            while more := os.read(ours, 4096):
                shown += more
        except OSError:  # the other end is closed
            pass
        status = process.wait(60)
    os.close(ours)
    text = " ".join(shown.decode().split())
    assert status == 1
    assert f"no tracker at {invitation.addresses[0].replace(':', ':')}" in text
    assert not any(line[:30] in shown.decode() for line in lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "this is no invitation"),
        ("bo\n", "this is no invitation"),
        ("rpcsys-invitation:", "is not whole"),
        ("rpcsys-invitation:AAAA", "is not whole"),
        (OWN.token, "this is no invitation"),
    ],
)
def test_what_is_no_invitation_is_refused_and_not_repeated(home: Path, text: str, words: str) -> None:
    done = typed(text)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not text[18:] or text[18:] not in done.stderr
    assert not home.exists()


@pytest.mark.parametrize("word", ["rpcsys-invitation:AAAA", OWN.token, f"--out={OWN.token}"])
@pytest.mark.parametrize("command", ["login", "whoami", "run"])
def test_a_secret_on_the_command_line_is_refused_before_anything(
    home: Path, word: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "_read", None)  # it would be called
    assert run_group([command, word]) == 2
    printed = capsys.readouterr().err
    assert "visible to everybody on this machine (ps)" in printed
    assert word not in printed


@pytest.mark.parametrize(
    "words",
    [
        ("query", "--tracker", OWN.token),
        ("tracker", "--lab", OWN.token),
        ("server", "--key", "k", "--lab", OWN.token),
        ("server", "--self-test", OWN.token),
        ("proxy", "--lab", OWN.token),
        ("forward", "--tracker", OWN.token),
    ],
)
def test_other_programs_refuse_it_too_and_look_nothing_up(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"rpcsys.{words[0]}", *words[1:]], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "visible to everybody on this machine (ps)" in done.stderr
    assert done.stderr.count("\n") == 1
    assert OWN.token not in done.stderr


def test_an_attempt_that_breaks_off_keeps_its_secret(home: Path, invitation: Invitation) -> None:
    """So that the next one is the same join, if the first has reached the tracker."""
    first = typed(invitation.text)
    assert first.returncode == 1
    (path,) = home.iterdir()
    assert path.name == f"joining-{invitation.id}"
    assert path.stat().st_mode & 0o777 == 0o600
    secret = path.read_text()
    assert typed(invitation.text).returncode == 1
    assert path.read_text() == secret
    assert secret.strip() not in first.stdout + first.stderr
    path.write_text("cut")
    assert typed(invitation.text).returncode == 1
    assert len(path.read_text()) == len(secret)


def test_a_full_disk_is_told_before_anything_is_sent(home: Path, invitation: Invitation) -> None:
    home.parent.write_text("no folder")
    done = typed(invitation.text)
    assert done.returncode == 2
    assert "nothing was sent, so try again" in done.stderr


def test_what_is_kept_of_attempts_is_removed_after_a_day(home: Path) -> None:
    home.mkdir(parents=True)
    done, old, fresh = (home / f"joining-{name}" for name in ("done", "old", "fresh"))
    for path in (done, old, fresh):
        path.touch()
    os.utime(old, (time.time() - 2 * login.KEPT_S,) * 2)
    login._clean(str(done))
    assert list(home.iterdir()) == [fresh]
