"""A board behind a real sshd: an overlay over this machine's files, in its own mount and PID namespaces.

An installation goes to the board's /opt and /etc, and the board's processes end with it. The board has a Python without
packages, no systemd, its own host and user keys, and this machine's network.

It needs root, like :mod:`tests.live.networks`; without root, the test fails with the reason.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.live.booted import Booted
from tests.live.daemons import START_S, free_port, reaper, wait_until

CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey /board/host
AuthorizedKeysFile /board/authorized
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
PasswordAuthentication no
Subsystem sftp internal-sftp
SetEnv PATH=/board/bin:{path}
"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Creates the board's files in {folder} and executes its sshd; a tmpfs holds the files that the board writes.
START = """
set -e
mount --make-rprivate /
mount -t tmpfs -o size={size} board {folder}/disk
cd {folder}/disk
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work board root
mount --rbind /dev root/dev
mount -t proc proc root/proc
mount -t tmpfs run root/run
mount -t tmpfs -o size={tmp} tmp root/tmp
chmod 1777 root/tmp
mkdir -p root/run/sshd
rm -rf root/opt/rpcsys root/etc/rpcsys
mount -t tmpfs home root/root
{binds}
cp -R {folder}/board root/board
exec chroot root sh -c '{prepare}
exec /usr/sbin/sshd -D -e -f /board/sshd_config'
"""


def keygen(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True, timeout=60)
    return path


@dataclass
class SshBoard:
    """The board's sh runs ``prepare`` before sshd starts; ``programs`` are first in the board's PATH.

    ``folders`` of this machine are bind-mounted: those of other file systems, and those below /root.
    """

    folder: Path
    prepare: str = ""
    programs: dict[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    path: str = PATH
    disk: str = "256m"
    tmp: str = "128m"
    port: int = 0
    _sshd: subprocess.Popen[bytes] | None = None

    def start(self) -> SshBoard:
        self._lay_out()
        (self.folder / "disk").mkdir()
        binds = "\n".join(f"mkdir -p root{each} && mount --bind {each} root{each}" for each in self.folders)
        script = START.format(folder=self.folder, prepare=self.prepare, binds=binds, size=self.disk, tmp=self.tmp)
        with (self.folder / "sshd.log").open("wb") as log:
            self._sshd = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        reaper.note("+", self._sshd.pid)
        wait_until(self._listens, START_S, "sshd listens")
        return self

    def _lay_out(self) -> None:
        """Create the keys of both ends, and the files of the board's /board."""
        assert os.geteuid() == 0, "this test needs root: it mounts file systems and calls chroot"
        assert shutil.which("sshd", path="/usr/sbin"), "type: apt-get install openssh-server"
        self.port = free_port()
        board = self.folder / "board"
        (board / "bin").mkdir(parents=True)
        host, user = keygen(board / "host"), keygen(self.folder / "user")
        shutil.copy(user.with_suffix(".pub"), board / "authorized")
        (board / "sshd_config").write_text(CONFIG.format(port=self.port, path=self.path))
        for name, text in self.programs.items():
            (board / "bin" / name).write_text(text)
            (board / "bin" / name).chmod(0o755)
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {host.with_suffix('.pub').read_text()}")

    def _listens(self) -> bool:
        assert self._sshd is None or self._sshd.poll() is None, (self.folder / "sshd.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def flags(self, *, known: bool = True) -> list[str]:
        """Flags for ssh, and for commands that accept ssh's flags."""
        return [
            "-F", "none",
            "-p", str(self.port),
            "-i", str(self.folder / "user"),
            "-o", f"UserKnownHostsFile={self.folder / ('known' if known else 'nobody')}",
            "-o", "IdentitiesOnly=yes",
        ]  # fmt: skip

    def shell(self, command: str, user: str = "root") -> str:
        """Run ``command`` on the board; its standard output."""
        done = subprocess.run(
            ["ssh", "-T", *self.flags(), "-o", "BatchMode=yes", f"{user}@127.0.0.1", command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        """All processes of the board; the first is sshd."""
        assert self._sshd is not None
        return psutil.Process(self._sshd.pid).children(recursive=True)

    def stop(self) -> None:
        """Kill all its processes, as a power cut does."""
        if self._sshd is not None:
            self._sshd.kill()
            self._sshd.wait()
            reaper.note("-", self._sshd.pid)
            self._sshd = None


@dataclass
class SystemdBoard(SshBoard):
    """A board with systemd. Its users must have entered the machine's network."""

    machine: Booted | None = None

    def start(self) -> SystemdBoard:
        assert self.machine is not None
        self._lay_out()
        shutil.copytree(self.folder / "board", self.machine.root / "board")
        self.machine.run("mkdir", "-p", "/run/sshd")
        self.machine.run("systemd-run", "--unit=board-sshd", "/usr/sbin/sshd", "-D", "-f", "/board/sshd_config")
        wait_until(self._listens, START_S, "sshd listens")
        return self
