"""``rpcsys exec``, with a program of this test in place of a board's."""

import contextlib
import os
import signal
import subprocess

import pytest
from click.testing import CliRunner

from rpcsys.cli import exec as command
from rpcsys.errors import ProgramNotFound, SessionLost, UsageError


class Session:
    """A session whose programs run here."""

    def __init__(self, error=None):
        self.error = error
        self.started = []

    def popen(self, args, **how):
        self.started.append((list(args), how))
        if self.error is not None:
            raise self.error
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(args, **pipes)
        process.resize = lambda *size: None
        return process


@pytest.fixture
def session(monkeypatch):
    made = Session()
    monkeypatch.setattr(
        command, "opened", lambda **where: contextlib.nullcontext(made.__class__ and _noted(made, where))
    )
    return made


def _noted(session, where):
    session.where = where
    return session


def invoked(*words):
    return CliRunner().invoke(command.exec, words, standalone_mode=False)


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 255)])
def test_the_status_is_the_programs(session, script, status):
    assert invoked("-n", "sh", "-c", script).return_value == status


def test_options_reach_the_program_and_its_own_stay(session):
    invoked("-n", "-e", "A=b=c", "-C", "folder", "true", "-n", "--key", "x")
    assert session.started == [
        (["true", "-n", "--key", "x"], {"terminal": False, "cwd": "folder", "env": {"A": "b=c"}})
    ]
    invoked("-n", "-t", "true")
    how = session.started[-1][1]
    assert "TERM" in how["env"]
    assert len(how["terminal"]) == 2


def test_as_a_remote_shell_it_takes_a_key_and_a_line(session):
    invoked("-n", "--rsh", "me@rpi4", "echo", "a\\ b", ">/dev/null")
    assert session.where["key"] == "rpi4"
    assert session.started[0][0] == ["sh", "-c", "echo a\\ b >/dev/null"]


def test_errors_have_the_status_of_ssh_or_of_a_shell(session):
    session.error = SessionLost("the board is gone")
    ended = invoked("true")
    assert ended.return_value == 255
    session.error = ProgramNotFound("no such program")
    assert isinstance(invoked("true").exception, ProgramNotFound)
    assert ProgramNotFound.exit_status == 127
    assert isinstance(invoked("-e", "novalue", "true").exception, UsageError)


def test_the_terminal_is_as_before_whatever_happens(monkeypatch):
    ours, theirs = os.openpty()
    monkeypatch.setattr(command, "_STDIN", theirs)
    before = command.termios.tcgetattr(theirs)

    def fail():
        with command._raw(True):
            assert command.termios.tcgetattr(theirs) != before
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert command.termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_three_interruptions_end_the_command(session):
    process = session.popen(["sh", "-c", "trap '' INT; exec sleep 600"])
    streams = command._Streams(process, no_stdin=True)
    for _ in range(command.INSISTS):
        streams._note(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        streams._pass_on()
    process.kill()
    process.communicate()
