"""What shells complete."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from rpcsys.cli import completion
from rpcsys.cli.commands import group
from tests.cli.conftest import Command


def words(*args: str) -> set[str]:
    """What comes in the place of the last of ``args``."""
    shell = BashComplete(group, {}, "rpcsys", completion.VARIABLE)
    return {item.value for item in shell.get_completions(list(args[:-1]), args[-1])}


def test_commands() -> None:
    assert {"tracker", "run", "completion"} <= words("")
    assert words("comp") == {"completion"}
    assert words("completion", "z") == {"zsh"}


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("tracker", "--state-dir"),
        ("proxy", "--web-port"),
        ("server", "--through-proxy"),
        ("query", "--why"),
        ("run", "--repeat"),
    ],
)
def test_flags_of_every_program(command: str, flag: str) -> None:
    assert {flag, "--help"} <= words(command, "--")
    assert words(command, flag) == {flag}
    assert words(command, "--no-such") == set()


def test_flags_after_others_and_names_of_files() -> None:
    assert words("tracker", "--port", "9190", "--state") == {"--state-dir"}
    shell = BashComplete(group, {}, "rpcsys", completion.VARIABLE)
    (item,) = shell.get_completions(["tracker", "--state-dir"], "/va")
    assert (item.type, item.value) == ("file", "/va")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_every_shell(shell: str, rpcsys: Command) -> None:
    done = rpcsys("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{completion.VARIABLE}={shell}_complete" in done.stdout


def test_another_shell_is_told_which_there_are(rpcsys: Command) -> None:
    done = rpcsys("completion", "dash")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "'fish'" in done.stderr


def test_bash_completes(rpcsys: Command, tmp_path: Path) -> None:
    script = tmp_path / "rpcsys.bash"
    script.write_text(rpcsys("completion", "bash").stdout)
    ask = f"""source {script}
COMP_WORDS=(rpcsys tracker --http); COMP_CWORD=2
_rpcsys_completion rpcsys; echo "${{COMPREPLY[@]}}"
"""
    path = os.pathsep.join(
        [sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", ask],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("--http-port", "")
