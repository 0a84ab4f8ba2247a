"""Which board a command uses."""

import pytest
from click.testing import CliRunner

from rpcsys.cli import one_session
from rpcsys.cli.exec import exec as exec_command
from rpcsys.errors import ConfigError, UsageError


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
    monkeypatch.delenv(one_session.HELD, raising=False)
    raised = CliRunner().invoke(exec_command, [*words, "true"]).exception
    assert isinstance(raised, kind)
    assert why in str(raised)


def test_a_held_board_needs_no_key(monkeypatch):
    asked = []

    class Tracker:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def request(self, key, **terms):
            asked.append((key, terms["labels"]))
            raise UsageError("asked")

    monkeypatch.setattr(one_session, "connect_tracker", lambda address: Tracker())
    monkeypatch.setenv(one_session.HELD, "/run/hold")
    with pytest.raises(UsageError, match="asked"), one_session.opened(None, (), None, None, None, None):
        pass
    assert asked == [(None, {})]
