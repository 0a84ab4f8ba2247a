"""An editor on a board, in a terminal that a person has here: tmux is that person."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.board_commands import WAIT_S, words
from tests.live.daemons import Daemon, wait_until

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("tmux", "vi"))), reason="needs a terminal and an editor: apt-get install tmux vim-tiny"
)


class Terminal:
    """A shell in a terminal of tmux."""

    def __init__(self, folder: Path) -> None:
        self._tmux = ["tmux", "-L", "rpcsys", "-f", "/dev/null"]
        self._environment = {"TMUX_TMPDIR": str(folder), "PATH": "/usr/bin:/bin", "PS1": "$ ", "LANG": "C.UTF-8"}
        self.do("new-session", "-d", "-x", "90", "-y", "30", "sh", ";", "set", "-g", "status", "off")

    def do(self, *words: str) -> str:
        command = [*self._tmux, *words]
        return subprocess.run(
            command, env=self._environment, check=True, capture_output=True, text=True, timeout=WAIT_S
        ).stdout

    def type(self, *keys: str) -> None:
        """Keys by tmux's names, and texts."""
        self.do("send-keys", *keys)

    def screen(self) -> str:
        return self.do("capture-pane", "-p")

    def until(self, text: str) -> None:
        end = time.monotonic() + WAIT_S
        wait_until(
            lambda: text in self.screen() or (time.monotonic() > end and pytest.fail(self.screen())), 2 * WAIT_S, text
        )

    def answers(self, question: str, text: str) -> bool:
        """Whether ``text`` is shown some time after a question has been typed."""
        self.type(question, "Enter")
        time.sleep(0.2)
        return text in self.screen()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    made.do("kill-server")


def test_an_editor_on_the_board(server: Daemon, terminal: Terminal, tmp_path: Path) -> None:
    edit = "vi -u NONE -N -n text && echo kept: $(cat text)"
    command = shlex.join(words(server, "exec", "-t", "sh", "-c", edit))
    (tmp_path / "edit").write_text(f"stty -g >before\n{command}\nstatus=$?\nstty -g >after\necho ended $status\n")
    terminal.type(f"cd {tmp_path}; . ./edit", "Enter")
    terminal.until("~\n~\n~")
    terminal.type("i", "typed here, ", "Enter", "saved there", "Escape")
    terminal.until("saved there")
    terminal.do("resize-window", "-x", "101", "-y", "41")
    # A size and what is typed may arrive in either order.
    wait_until(lambda: terminal.answers(":set columns?", "columns=101"), WAIT_S, "the terminal is wider")
    wait_until(lambda: terminal.answers(":set lines?", "lines=41"), WAIT_S, "the terminal is higher")
    terminal.type("Enter", ":wq", "Enter")
    terminal.until("ended 0")
    terminal.until("kept: typed here, saved there\n")
    assert (tmp_path / "after").read_text() == (tmp_path / "before").read_text()
    terminal.type("echo $((40+2))", "Enter")
    terminal.until("\n42\n")
