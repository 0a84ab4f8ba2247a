"""Boards without a board: Debian's Python for other processors, unpacked into a folder and run by qemu-user.

``machine("aarch64").python`` is an executable that behaves as ``python3`` does on such a board: its standard
library alone, its own C library, ``sys.executable`` and ``platform.machine()`` as they are there. The host's
dpkg is not touched: apt has a state of its own, and packages are unpacked, not installed. What was unpacked is
kept in the user's cache folder (``$XDG_CACHE_HOME/rpcsys-tests``, 60 MB a machine) from one run to the next.

Known weakness: qemu 7 knows no subreapers, and a process takes about 15 MB more than on a real board.
"""

from __future__ import annotations

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
#: What TVM's libraries need beside Python's own needs.
PACKAGES = ("python3", "libstdc++6")
APT_S = 300


@dataclass(frozen=True)
class Machine:
    """A kind of board: what qemu, Debian and compilers call its processor, and the release that it runs."""

    qemu: str
    debian: str
    triple: str
    suite: str = "bookworm"
    packages: tuple[str, ...] = PACKAGES

    @property
    def root(self) -> Path:
        """The folder with its file system; unpacked when first asked for."""
        return _unpacked(self)

    @property
    def python(self) -> Path:
        """Its Python, to be run like any program."""
        return self.root / "usr" / "bin" / "python3"

    def command(self, *program: str | Path) -> list[str]:
        """How one of its native programs is run on this machine, with the board's libraries."""
        return [f"qemu-{self.qemu}-static", "-L", str(self.root), *map(str, program)]

    def run(self, *arguments: str | Path, timeout: float = 120, cwd: Path | None = None) -> str:
        """What its Python prints, given ``arguments``. A failure shows its standard error."""
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
    "riscv64": Machine("riscv64", "riscv64", "riscv64-linux-gnu", suite="trixie"),
}


def store() -> Path:
    """Where what takes long to get is kept from one run to the next."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "rpcsys-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _unpacked(machine: Machine) -> Path:
    """One process unpacks, the others wait; what stands under its final name is whole."""
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
    """Where this system's apt has Debian from, which is where other machines' packages are, too."""
    form = "$(LABEL)|$(COMPONENT)|$(SITE)"
    done = subprocess.run(["apt-get", "indextargets", "--format", form], capture_output=True, text=True)
    listed = [line.split("|") for line in done.stdout.splitlines()]
    # The label is known once the lists have been fetched.
    sites = [site for label, part, site in listed if part == "main" and (label or site[-7:]) in ("Debian", "/debian")]
    assert sites, "apt knows no mirror of Debian; type: sudo apt-get update"
    return sites[0]


def unpacked(machine: Machine, work: Path) -> Path:
    """A folder below ``work`` with the machine's packages and all they depend on; they are not set up."""
    _download(machine, work)
    _unpack(work)
    return work / "root"


def _download(machine: Machine, work: Path) -> None:
    """The packages and all they depend on, into ``work/archives``."""
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
    for name in ("bin", "lib", "sbin"):  # newer releases have them below usr, and links that no package holds
        if not (work / "root" / name).exists():
            (work / "root" / name).symlink_to(f"usr/{name}")


def _wrap(machine: Machine, folder: Path, final: Path) -> None:
    """Put a script in the place of Python: only so can it be executed by name, also by itself.

    It stands where the real one stood: that is how Python finds its standard library, isolated or not.
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
