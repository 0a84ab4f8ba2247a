"""``rpcsys board`` with its own inventory, a real tracker, and boards behind real sshds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import rpcsys
from tests.live.daemons import Daemon
from tests.live.sshboard import SshBoard

START_S = 90.0
KEY = "lab:board"
#: A user who is not root, with a login shell that prints a line.
PI = """useradd --create-home --shell /bin/bash pi
usermod --password "*" pi
echo "echo Welcome, pi" >/home/pi/.bashrc"""


@dataclass
class BoardCli:
    """The command, its tracker, and its boards.

    ``archive`` is of this version. ``short_folder`` has a path short enough for a Unix socket in it.
    """

    folder: Path
    tracker: Daemon
    archive: Path
    short_folder: Path
    made: list[SshBoard]

    def board(self, prepare: str = "", programs: dict[str, str] | None = None, **more) -> SshBoard:
        folder = self.folder / f"board{len(self.made)}"
        folder.mkdir()
        board = SshBoard(folder, prepare, programs or {}, **more)
        self.made.append(board)
        return board.start()

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "_TRACKER_" not in name}
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "XDG_RUNTIME_DIR": str(self.short_folder)}
        return {**kept, **own, "TMPDIR": str(self.folder)}

    def start(self, *words: str, **popen) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rpcsys", "board", *words]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=self.environment, text=True, **{**streams, **popen})

    def run(self, *words: str, status: int = 0) -> str:
        """What the command prints; if it fails, its one error line."""
        with self.start(*words) as process:
            out, err = process.communicate(timeout=200)
        assert process.returncode == status, out + err
        assert "Traceback" not in err
        if not status:
            return out
        errors = [line for line in err.splitlines() if "error: " in line]
        assert len(errors) == 1, err
        return errors[0]

    def adding(
        self, board: SshBoard, *more: str, user: str = "root", name: str = "b1", known: bool = True
    ) -> list[str]:
        """The arguments that add ``board``; in ``more``, flags of the server follow a ``--``."""
        flags, behind = list(more), []
        if "--" in flags:
            flags, behind = flags[: flags.index("--")], flags[flags.index("--") + 1 :]
        return [
            "add", f"{user}@127.0.0.1", "--key", KEY, "--tracker", self.tracker.where, "--name", name,
            "--archive", str(self.archive), *board.flags(known=known), *flags,
            "--", "--host", "127.0.0.1", "--port", "0", *behind,
        ]  # fmt: skip

    def listed(self, *flags: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.run("list", "--json", *flags).splitlines() if line[0] == "{"]

    def lease(self) -> rpcsys.Session:
        return rpcsys.connect_tracker(self.tracker.address).request(KEY, wait_timeout=START_S)


def packing(words: list[str]) -> list[str]:
    """The arguments without ``--archive``: the command packs the archive for the board."""
    at = words.index("--archive")
    return words[:at] + words[at + 2 :]


#: The folders that an installation may write to. Others, such as /var/tmp, may belong to other tests.
PLACES = "/etc /home /opt /run /srv /usr/local /var/cache /var/lib /var/log /var/spool"


def left(board: SshBoard) -> str:
    """Files and processes of rpcsys on the board."""
    return board.shell(
        rf"find {PLACES} -xdev \( -name '*rpcsys*' -o -path '*/etc/rpcsys/*' \) 2>/dev/null; "
        "ls -d /tmp/rpcsys.* 2>/dev/null; ps ax -o args | grep '[s]tart.py'; :"
    )


def version_of(board: SshBoard) -> str:
    """The version in use; its files are verified."""
    said = board.shell("python3 /opt/rpcsys/current/python/verify.py && readlink /opt/rpcsys/current")
    return said.partition("versions/")[2].strip()
