"""A machine with its own systemd: this machine's Debian, booted a second time in namespaces (``boot.sh``).

Its disk is an overlay in memory over this machine's disk: all changes are lost when it ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.live.daemons import Daemons, wait_until
from tests.live.networks import enter

BOOT_S = 60.0
COMMAND_S = 120.0
SCRIPT = Path(__file__).with_name("boot.sh")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDS = "this test boots a systemd of its own: that needs root, Linux with cgroup2 and overlayfs, and systemd installed"


class Booted:
    """The machine. The constructor returns when it is up; ``daemons.stop()`` and then ``close()`` end it."""

    def __init__(self, daemons: Daemons) -> None:
        self._group = f"rpcsys-test-{os.getpid()}-{time.monotonic_ns()}"
        self.folder = daemons.folder / "machine"
        self.folder.mkdir()
        words = ("unshare", "--mount", "sh", str(SCRIPT), str(self.folder), self._group)
        self._outer = daemons.launch("machine", words)
        self._first = 0
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        try:
            self._first = wait_until(self._systemd, BOOT_S, "systemd as process 1")
            wait_until(self._is_up, BOOT_S, "the end of its start")
            self.run("systemctl", "log-target", "journal")
        except (AssertionError, OSError) as error:
            pytest.fail(f"{NEEDS} ({error}):\n{self._outer.stderr()[-2000:]}")

    def _systemd(self) -> int | None:
        if not self._outer.running():
            raise OSError(f"it ended with {self._outer.process.returncode}")
        try:
            (unshare,) = psutil.Process(self._outer.pid).children()
            (first,) = unshare.children()
            return first.pid if first.name() == "systemd" and first.pid != self._first else None
        except (ValueError, psutil.NoSuchProcess):
            return None  # boot.sh is between two steps

    def cut_power(self) -> None:
        """End all its processes at once, then wait until it has booted again."""
        os.kill(self._first, signal.SIGKILL)
        self._wait_until_up()

    def _is_up(self) -> bool:
        return self._run("systemctl", "is-system-running", "--wait").stdout.strip() in ("running", "degraded")

    @property
    def root(self) -> Path:
        """The path of its file system on this machine."""
        return Path(f"/proc/{self._first}/root")

    def command(self, *command: str) -> list[str]:
        """The command line that runs ``command`` there, in a fresh login of root."""
        inside = ("nsenter", "--target", str(self._first), "--all", "--root", "--wd")
        return [*inside, "env", "-i", f"PATH={PATH}", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", *command]

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    def run(self, *command: str) -> str:
        """The standard output of a command there. AssertionError with all its output if it fails."""
        done = self._run(*command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def fails(self, *command: str) -> str:
        """The standard error of a command there. AssertionError if it succeeds."""
        done = self._run(*command)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def copy(self, *files: Path) -> list[str]:
        """Copy files into its /tmp; their paths there."""
        for file in files:
            shutil.copyfile(file, self.root / "tmp" / file.name)
        return [f"/tmp/{file.name}" for file in files]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread into the machine's network: new sockets reach the daemons on its loopback."""
        with open("/proc/thread-self/ns/net") as before:
            with open(f"/proc/{self._first}/ns/net") as there:
                enter(there)
            try:
                yield
            finally:
                enter(before)

    # --- units -------------------------------------------------------------------------------------

    def show(self, unit: str, what: str) -> str:
        """The value of one property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={what}", unit).strip()

    def wait_for(self, unit: str, what: str, value: str, deadline_s: float) -> None:
        """Wait until a property has this value."""
        wait_until(lambda: self.show(unit, what) == value, deadline_s, f"{unit}: {what}={value}", every_s=0.2)

    def main_pid(self, unit: str) -> int:
        """The pid of the unit's main process in the machine's PID namespace; 0 if none runs."""
        return int(self.show(unit, "MainPID"))

    def signal(self, name: str, unit: str) -> None:
        """Send a signal to the unit's main process only, without systemd."""
        self.run("sh", "-c", f"kill -{name} {self.main_pid(unit)}")

    def journal(self, unit: str) -> str:
        """The unit's log."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)

    def close(self) -> None:
        """Remove the empty cgroups that are left after its end."""
        hierarchy = self.folder / "cgroup"
        script = (
            f"mount -t cgroup2 cgroup {hierarchy} && find {hierarchy}/{self._group} -depth -type d -exec rmdir {{}} +"
        )

        def removed() -> bool:
            done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False)
            return done.returncode == 0

        wait_until(removed, BOOT_S, f"no processes in {self._group}", every_s=0.2)
