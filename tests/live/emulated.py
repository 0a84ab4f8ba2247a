"""Emulated boards: Debian's Python for other processors, unpacked into a folder and run by qemu-user.

``MACHINES["aarch64"].python`` is an executable that behaves like ``python3`` on such a board: it has only the standard
library and the board's C library, and ``sys.executable`` and ``platform.machine()`` are the board's. The host's dpkg
is not changed: apt has its own state, and packages are unpacked, not installed. The unpacked files stay in the user's
cache folder (``$XDG_CACHE_HOME/rpcsys-tests``, 60 MB per machine) for later runs.

Limits: qemu 7 has no subreapers, and a process needs about 15 MB more than on a real board.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: Python, and the libraries that TVM's libraries need.
PACKAGES = ("python3", "libstdc++6")
APT_S = 300


@dataclass(frozen=True)
class Machine:
    """A kind of board: its processor's names in qemu, Debian and compilers, and its Debian release.

    ``later``: the release in its place while the mirror's index of it is wrong, as in the middle of a synchronisation.
    """

    qemu: str
    debian: str
    triple: str
    suite: str = "bookworm"
    packages: tuple[str, ...] = PACKAGES
    later: str = ""

    @property
    def root(self) -> Path:
        """The folder with its file system; unpacked at the first use."""
        return _unpacked(self)

    @property
    def python(self) -> Path:
        """The path of its Python, which runs like any program."""
        return self.root / "usr" / "bin" / "python3"

    def command(self, *program: str | Path) -> list[str]:
        """The command line that runs one of its native programs on this machine, with the board's libraries."""
        return [f"qemu-{self.qemu}-static", "-L", str(self.root), *map(str, program)]

    def run(self, *arguments: str | Path, timeout: float = 120, cwd: Path | None = None) -> str:
        """Run its Python with ``arguments``; its standard output. A failure shows its standard error."""
        done = subprocess.run(
            [self.python, *arguments], capture_output=True, text=True, timeout=timeout, cwd=cwd, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


MACHINES = {
    "aarch64": Machine("aarch64", "arm64", "aarch64-linux-gnu"),
    "armhf": Machine("arm", "armhf", "arm-linux-gnueabihf"),
    # An old distribution: Python 3.9, glibc 2.31.
    "old": Machine("aarch64", "arm64", "aarch64-linux-gnu", suite="bullseye"),
    "riscv64": Machine("riscv64", "riscv64", "riscv64-linux-gnu", suite="trixie", later="forky"),
}


def store() -> Path:
    """The cache folder that test runs share."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "rpcsys-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _unpacked(machine: Machine) -> Path:
    """One process unpacks while the others wait; a folder under its final name is complete."""
    assert shutil.which(f"qemu-{machine.qemu}-static"), "type: sudo apt-get install qemu-user-static"
    root = store() / f"{machine.suite}-{machine.debian}"
    with root.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.is_dir():
            with tempfile.TemporaryDirectory(dir=root.parent) as work:
                _wrap(machine, unpacked(machine, Path(work)), root)
                (Path(work) / "root").rename(root)
    return root


def mirror() -> str:
    """The Debian mirror of this system's apt; it has the packages of other machines, too."""
    form = "$(LABEL)|$(COMPONENT)|$(SITE)"
    done = subprocess.run(["apt-get", "indextargets", "--format", form], capture_output=True, text=True)
    listed = [line.split("|") for line in done.stdout.splitlines()]
    # The label is known after `apt-get update`.
    sites = [site for label, part, site in listed if part == "main" and (label or site[-7:]) in ("Debian", "/debian")]
    assert sites, "apt knows no mirror of Debian; type: sudo apt-get update"
    return sites[0]


def unpacked(machine: Machine, work: Path) -> Path:
    """Unpack the machine's packages and their dependencies below ``work``; the folder. They are not configured."""
    try:
        _download(machine, work)
    except AssertionError:
        if not machine.later:
            raise
        for folder in ("lists", "archives", "etc"):
            shutil.rmtree(work / folder)
        _download(dataclasses.replace(machine, suite=machine.later), work)
    _unpack(work)
    return work / "root"


def _download(machine: Machine, work: Path) -> None:
    """Download the packages and their dependencies into ``work/archives``."""
    for folder in ("lists/partial", "archives/partial", "etc"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources").write_text(f"deb [signed-by={KEYRING}] {mirror()} {machine.suite} main\n")
    options = {
        "APT::Architecture": machine.debian,
        "APT::Architectures": machine.debian,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Dir::Etc": work / "etc",
        "Dir::Etc::SourceList": work / "sources",
        "Dir::State": work,
        "Dir::State::Lists": work / "lists",
        "Dir::State::Status": work / "status",
        "Dir::Cache": work,
        "Dir::Cache::Archives": work / "archives",
    }
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _run(["apt-get", "-qq", *flags, "update"])
    _run(["apt-get", "-qq", "--yes", *flags, "install", "--download-only", *machine.packages])


def _unpack(work: Path) -> None:
    (work / "root").mkdir()
    for package in sorted((work / "archives").glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(work / "root")])
    for name in ("bin", "lib", "sbin"):  # newer releases have them below usr, and no package contains the links
        if not (work / "root" / name).exists():
            (work / "root" / name).symlink_to(f"usr/{name}")


def _wrap(machine: Machine, folder: Path, final: Path) -> None:
    """Replace Python with a script that starts qemu, so that Python can be executed by name, also by itself.

    The script has the path of the real Python: from it Python finds its standard library, isolated or not.
    """
    link = folder / "usr" / "bin" / "python3"
    program = link.resolve()
    program.rename(program.with_suffix(".elf"))
    link.unlink()
    link.write_text(
        "#!/bin/sh\n"
        f'exec qemu-{machine.qemu}-static -0 "{final}/usr/bin/python3" -L "{final}" '
        f'"{final}/usr/bin/{program.with_suffix(".elf").name}" "$@"\n'
    )
    link.chmod(0o755)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=APT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
