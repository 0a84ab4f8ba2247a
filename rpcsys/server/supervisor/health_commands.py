"""Runs the operator's commands (:mod:`rpcsys.server.supervisor.health`) beside the loop, with a time limit."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.health import CHECK, RECOVER
from rpcsys.server.supervisor.loop import Loop

#: A command that runs longer is killed with its process group. A power cycle takes a minute.
TIMEOUT_S = {CHECK: 30.0, RECOVER: 120.0}
POLL_S = 0.05  # between two polls of a command
_SHELL = "/bin/sh"
_TAIL = 400  # bytes of its output that are kept


class HealthCommands:
    """Runs at most one command at a time, and posts ``CommandDone`` at its end."""

    def __init__(self, loop: Loop, commands: Mapping[str, str]) -> None:
        self._loop = loop
        self._commands = commands
        self._what = ""
        self._pid = 0
        self._pipe = -1
        self._until = 0.0
        self._said = b""

    def run(self, what: str) -> None:
        """Start a command. `CommandDone` always follows."""
        ours, theirs = os.pipe()
        self._what, self._said = what, b""
        try:
            self._pid = os.posix_spawn(
                _SHELL,
                [_SHELL, "-c", self._commands[what]],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, theirs, 1),
                    (os.POSIX_SPAWN_DUP2, theirs, 2),
                ],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGTERM, signal.SIGINT, signal.SIGPIPE),
            )
        except OSError as error:
            os.close(ours)
            self._loop.post(ev.CommandDone, what, f"{_SHELL}: {error.strerror}")
            return
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        self._pipe = ours
        self._until = self._loop.now() + TIMEOUT_S[what]
        self._loop.add(ours, self._read)
        self._loop.call_at(self._loop.now() + POLL_S, self._poll)

    def _poll(self) -> None:
        """Check whether the command has ended; kill it after its time limit."""
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # the spawner killed it while it cleaned up after a dead zygote
            self._end("it was killed")
            return
        if pid:
            self._end(self._problem(status))
        elif self._loop.now() >= self._until:
            self.kill()
            self._end(f"it was not done after {TIMEOUT_S[self._what]:g} s")
        else:
            self._loop.call_at(self._loop.now() + POLL_S, self._poll)

    def kill(self) -> None:
        """Kill a running command with its process group."""
        if self._pid:
            try:
                os.killpg(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)  # SIGKILL always ends it
            except (ProcessLookupError, ChildProcessError, PermissionError):
                pass

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            return
        if data:
            self._said = (self._said + data)[-_TAIL:]
        else:
            self._close()
            self._loop.call_at(self._loop.now(), self._poll)

    def _close(self) -> None:
        if self._pipe >= 0:
            self._loop.remove(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def _problem(self, status: int) -> str:
        if self._pipe >= 0:
            self._read()
        if not status:
            return ""
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
        text = f"{ended}: {lines[-1].strip()}" if lines else ended
        return "".join(char if char.isprintable() else " " for char in text)[:200]

    def _end(self, problem: str) -> None:
        self._pid = 0
        self._close()
        self._loop.call_at(None, self._poll)
        self._loop.post(ev.CommandDone, self._what, problem)
