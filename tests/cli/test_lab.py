"""What the commands of a lab print; with trackers they are in tests/live/test_lab_commands.py."""

from __future__ import annotations

import click
import pytest

from rpcsys.cli import lab
from rpcsys.cli.commands import run_group

DAY_S = 86400.0


def test_what_it_has_is_listed(capsys) -> None:
    assert run_group(["lab", "--help"]) == 0
    printed = capsys.readouterr().out
    for name in ("init", "invite", "enrol", "members", "revoke", "renew", "rotate", "check", "audit", "open", "close"):
        assert f"  {name} " in printed


@pytest.mark.parametrize(("text", "seconds"), [("90d", 90 * DAY_S), ("1.5h", 5400.0), ("30 min", 1800.0), ("1s", 1.0)])
def test_durations(text: str, seconds: float) -> None:
    assert lab.lasting(None, None, text) == seconds


@pytest.mark.parametrize("text", ["", "0d", "90", "-1d", "1e9d", "d", "1w", "9999999d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no duration"):
        lab.lasting(None, None, text)


@pytest.mark.parametrize(
    ("row", "state"),
    [
        ({"joined": 1.0}, "member"),
        ({"joined": 1.0, "renew": True}, "to renew its token"),
        ({"joined": 1.0, "expires": 4e9}, "member"),
        ({"joined": 1.0, "expires": 1.7e9}, "expired 20"),
        ({"joined": 1.0, "revoked": 2.0}, "revoked 19"),
        ({"joined": 1.0, "revoked": 2.0, "invited_until": 4e9}, "invited until 20"),
        ({"invited_until": 4e9}, "invited until 20"),
    ],
)
def test_a_members_state(row, state: str) -> None:
    assert lab._state(row).startswith(state)


def test_times_of_any_size() -> None:
    assert lab.moment(None) == "-"
    assert lab.moment(1_800_000_000.0).startswith("2027-01-1")
    assert lab.moment(1e15) == "far away"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            '{"at": 1800000000.0, "who": "mo", "from": "10.0.0.7", "did": "revoke", "on": "bo"}',
            "mo@10.0.0.7  revoke bo",
        ),
        ('{"at": 1800000000.0, "who": "mo", "from": "", "did": "open", "result": "no"}', "mo  open  (no)"),
        ('{"at": 1800000000.0, "who": "\\u001b[31m", "from": "h", "did": "x"}', "\\x1b[31m@h  x"),
        ("damaged", "(no entry: damaged)"),
        ('{"at": null}', "(no entry:"),
        ("[]", "(no entry: [])"),
        ("[" * 100_000, "(no entry: [[["),
    ],
)
def test_a_line_of_the_log(line: str, shown: str, capsys) -> None:
    lab._show(line, None, False)
    assert shown in capsys.readouterr().out
    lab._show(line, 1_900_000_000.0, False)
    assert (capsys.readouterr().out == "") == (line.startswith('{"at": 18'))
    lab._show(line, None, True)
    assert capsys.readouterr().out.strip() == line
