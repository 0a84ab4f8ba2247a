"""``rpcsys`` commands that use one board, as a person types them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.live.daemons import Daemon, Daemons

FLAGS = ("--preload", "none", "--tvm", "off")
WAIT_S = 60


def board(daemons: Daemons, *flags: str) -> Daemon:
    """A server whose sessions may run programs."""
    return daemons.server("k", *FLAGS, "--allow-exec", *flags)


def words(server: Daemon, command: str, *args: str) -> list[str]:
    """A command line for the board of ``server``."""
    return [sys.executable, "-m", "rpcsys", command, "--server", server.where, "--key", "k", *args]


def run(server: Daemon, command: str, *args: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words(server, command, *args), capture_output=True, timeout=WAIT_S, **more)


class _Started(subprocess.Popen[bytes]):
    """A command that a test's failure ends: else the test would wait for it."""

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


def started(server: Daemon, command: str, *args: str, **more: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return _Started(words(server, command, *args), **pipes)


def shell(script: str) -> Sequence[str]:
    return ["sh", "-c", script]
