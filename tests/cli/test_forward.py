"""``rpcsys forward``: its ports."""

import contextlib
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from rpcsys.cli import forward
from rpcsys.errors import ProgramError, UsageError


@pytest.mark.parametrize(("text", "ports"), [("80", (80, 80)), ("80:8080", (80, 8080)), ("65535:1", (65535, 1))])
def test_ports_of_the_board_and_the_desk(text, ports):
    assert forward._parsed(text) == ports


@pytest.mark.parametrize("text", ["", ":", "80:", ":80", "0", "65536", "a", "1:2:3", "-1", "٣"])
def test_what_is_no_port_is_refused_before_anything_is_leased(text):
    raised = CliRunner().invoke(forward.forward, ["--key", "k", "--", text]).exception
    assert isinstance(raised, UsageError)
    assert "ports look like" in str(raised)


def test_a_port_in_use_on_the_board_is_an_error_as_one_here(monkeypatch):
    def busy(*_, **__):
        raise ProgramError("port 80 of the device: Address already in use; choose another one")

    session = contextlib.nullcontext(SimpleNamespace(forward=busy))
    monkeypatch.setattr(forward, "opened", lambda **where: session)
    raised = CliRunner().invoke(forward.forward, ["--key", "k", "--reverse", "80"]).exception
    assert type(raised) is UsageError
    assert raised.exit_status == 2
    assert str(raised).startswith("port 80 of the device")
