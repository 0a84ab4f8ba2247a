"""A lab made by ``rpcsys lab init``, its tracker, and users who type commands at their desks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpcsys.errors import ConfigError
from rpcsys.link import credential
from rpcsys.link.credential import Credential
from tests.live.daemons import ROOT, Daemon, Daemons, free_port
from tests.live.probe import KEEPERS

COMMAND_S = 60.0
KEEPER = "mo"
UNAUTHORIZED = 4  # the exit status of who is not let in


@dataclass
class LabSite:
    """A lab below ``folder``; :meth:`start` starts its tracker."""

    folder: Path
    daemons: Daemons
    port: int = field(default_factory=free_port)
    tracker: Daemon | None = None

    @property
    def path(self) -> Path:
        return self.folder / "lab"

    @property
    def where(self) -> str:
        return f"127.0.0.1:{self.port}"

    def environment(self, user: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "_TRACKER" not in name and name != "SUDO_USER"}
        own = {"XDG_CONFIG_HOME": str(self.folder / user), "XDG_STATE_HOME": str(self.folder / user / "state")}
        return {**kept, **own, "PYTHONPATH": str(ROOT)}

    def begin(self, user: str, *words: str, **popen: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rpcsys", *words]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=self.environment(user), text=True, **{**streams, **popen})

    def run(self, user: str, *words: str, typed: str = "", status: int = 0) -> str:
        """What a user's command prints; if it fails, its one error line."""
        with self.begin(user, *words) as process:
            out, err = process.communicate(typed, timeout=COMMAND_S)
        self.note_keeper()
        assert process.returncode == status, out + err
        assert "Traceback" not in err
        if not status:
            return out
        assert out == ""
        assert err.startswith("rpcsys: error: ")
        assert err.count("\n") == 1, err
        return err

    def init(self, *flags: str) -> dict[str, Any]:
        """Make the lab; its line of JSON."""
        place = ("--dir", str(self.path), "--host", self.where, "--name", "basement", "--member", KEEPER)
        return json.loads(self.run(KEEPER, "lab", "init", *place, *flags))

    def start(self, **popen: Any) -> Daemon:
        """Start the tracker, or start it again."""
        self.note_keeper()
        self.tracker = self.daemons.lab_tracker("--lab", str(self.path), port=self.port)
        return self.tracker

    def kill(self) -> None:
        assert self.tracker is not None
        os.kill(self.tracker.pid, signal.SIGKILL)
        self.tracker.process.wait()

    def note_keeper(self) -> None:
        """The checks at the end of a test ask the tracker as its keeper."""
        try:
            KEEPERS[self.port] = self.credential(KEEPER).token
        except ConfigError:
            pass

    def place(self, user: str) -> Path:
        return self.folder / user / "rpcsys" / "labs" / "basement.json"

    def credential(self, user: str) -> Credential:
        return credential.read(str(self.place(user)))

    def invite(self, name: str, *flags: str) -> str:
        line = self.run(KEEPER, "lab", "invite", name, *flags)
        assert line.count("\n") == 1
        return line

    def join(self, name: str, *flags: str) -> Credential:
        self.run(name, "login", typed=self.invite(name, *flags))
        return self.credential(name)

    def who(self, user: str) -> dict[str, Any]:
        return json.loads(self.run(user, "whoami", "--json"))

    def members(self) -> dict[str, dict[str, Any]]:
        lines = self.run(KEEPER, "lab", "members", "--json").splitlines()
        return {row["name"]: row for row in map(json.loads, lines)}
