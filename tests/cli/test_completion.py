"""Completion in shells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from rpcsys.board import inventory
from rpcsys.cli.commands import group
from tests.cli.conftest import Command


def words(*args: str) -> set[str]:
    """The completions for the last of ``args``."""
    shell = BashComplete(group, {}, "rpcsys", "_RPCSYS_COMPLETE")
    return {item.value for item in shell.get_completions(list(args[:-1]), args[-1])}


def test_commands() -> None:
    assert {"tracker", "run", "completion"} <= words("")
    assert words("compl") == {"completion"}
    assert words("completion", "z") == {"zsh"}


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("tracker", "--state-dir"),
        ("proxy", "--web-port"),
        ("connect", "--listen"),
        ("server", "--through-proxy"),
        ("query", "--why"),
        ("run", "--repeat"),
        ("compare", "--least"),
    ],
)
def test_flags_of_every_program(command: str, flag: str) -> None:
    assert {flag, "--help"} <= words(command, "--")
    assert words(command, flag) == {flag}
    assert words(command, "--no-such") == set()


def test_flags_after_other_flags_and_file_names() -> None:
    assert words("tracker", "--port", "9190", "--state") == {"--state-dir"}
    shell = BashComplete(group, {}, "rpcsys", "_RPCSYS_COMPLETE")
    (item,) = shell.get_completions(["tracker", "--state-dir"], "/va")
    assert (item.type, item.value) == ("file", "/va")


def test_completion_of_query_tracker() -> None:
    assert words("query", "") >= {"leases", "history", "usage"}
    assert words("query", "--json", "hist") == {"history"}
    assert words("query", "leases", "--k") == {"--key"}


def test_completion_of_boards_in_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert words("board", "upgrade", "") == set()
    with inventory.changing() as boards:
        boards.update({name: inventory.Entry(name, "root@board") for name in ("rpi1", "rpi2", "rv1")})
    assert words("board", "upgrade", "rpi1", "rp") == {"rpi1", "rpi2"}
    assert words("board", "remove", "rv") == {"rv1"}
    inventory.path().write_text("{")
    assert words("board", "remove", "rv") == set()


def test_the_error_for_an_unknown_shell_lists_the_known_ones(rpcsys: Command) -> None:
    done = rpcsys("completion", "dash")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "'fish'" in done.stderr


#: Requests completions from each shell without a terminal: {script} is rpcsys's, {words} follow the command {name}.
ASK = {
    "bash": """
source {script}
COMP_WORDS=({name} {words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_{name}_completion {name}
echo "${{COMPREPLY[@]}}"
""",
    "zsh": """
compdef() {{ }}
compadd() {{ print -r -- $completions }}
_describe() {{ print -r -- $completions_with_descriptions }}
source {script}
words=({name} {words})
CURRENT=$#words
_{name}_completion
""",
    "fish": "source {script}; complete -C '{name} {words}'",
}
BARE = {"bash": "--norc", "zsh": "--no-rcs", "fish": "--no-config"}


@pytest.mark.slow
@pytest.mark.parametrize("shell", sorted(ASK))
@pytest.mark.parametrize(
    ("name", "typed", "finds"),
    [("rpcsys", "tracker --http-p", "--http-port"), ("query_tracker", "leases --js", "--json")],
)
def test_each_shell_completes(shell: str, name: str, typed: str, finds: str, rpcsys: Command, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(rpcsys("completion", shell, name).stdout)
    path = os.pathsep.join([sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [shell, BARE[shell], "-c", ASK[shell].format(script=script, name=name, words=typed)],
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (re.split(r"[\s:]", done.stdout)[0], done.stderr) == (finds, "")
