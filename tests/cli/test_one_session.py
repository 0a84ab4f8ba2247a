"""Which board a command uses."""

import contextlib

import pytest
from click.testing import CliRunner

from rpcsys.cli import one_session
from rpcsys.cli.exec import exec as exec_command
from rpcsys.client import attaching
from rpcsys.errors import ConfigError, SessionLost, UsageError


@pytest.mark.parametrize(
    ("words", "kind", "why"),
    [
        ([], UsageError, "give --key"),
        (["--key", "a b"], ConfigError, "--key"),
        (["--key-file", "f"], UsageError, "--key-file is for one server"),
        (["--label", "x"], UsageError, "labels look like"),
    ],
)
def test_a_wrong_place_is_refused_before_anything_is_opened(monkeypatch, words, kind, why):
    monkeypatch.delenv(attaching.VARIABLE, raising=False)
    raised = CliRunner().invoke(exec_command, [*words, "true"]).exception
    assert isinstance(raised, kind)
    assert why in str(raised)


def test_a_held_board_needs_no_key_and_no_tracker(monkeypatch):
    held = contextlib.nullcontext("session")
    monkeypatch.setenv(attaching.VARIABLE, "/run/hold")
    monkeypatch.setattr(attaching, "to_hold", lambda *asked: held if asked == (None, {}, None) else None)
    with one_session.opened(None, (), None, None, None, None) as session:
        assert session is held


def test_who_loses_a_held_board_learns_why_the_hold_is_over(monkeypatch, tmp_path):
    path = str(tmp_path / "released")
    monkeypatch.setenv(attaching.VARIABLE, path)
    monkeypatch.setattr(attaching, "to_hold", lambda *_: contextlib.nullcontext())
    place = one_session.opened(None, (), None, None, None, None)
    with pytest.raises(SessionLost, match=f"the hold of {path} is over"), place:
        raise SessionLost("the connection was closed")
