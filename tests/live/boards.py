"""Device runtimes: packed once per test run, unpacked and started on emulated boards.

TVM's libraries come from PyPI's wheels. 32-bit ARM has no wheel: its libraries are built from source
(:mod:`tests.live.sdist`). For RISC-V, only libtvm_ffi is built.
"""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

from rpcsys.pack import build
from tests.live import sdist
from tests.live.daemons import Daemon, Daemons
from tests.live.emulated import Machine
from tests.live.once import once

KEY = "board"


def packed(shared: Path, triple: str) -> Path:
    """The device runtime for a target in ``shared``; the first process of the run that needs it packs it."""

    def pack(path: Path) -> None:
        if triple == "aarch64-linux-gnu":
            build.pack(triple, path, from_wheels=True, glibc="2.27")
        elif triple == "arm-linux-gnueabihf":
            build.pack(triple, path, folder=sdist.runtime(triple))
        else:
            build.pack(triple, path, folder=sdist.built(triple))

    return once(shared / f"rpcsys-device-{triple}.tar.gz", pack)


@dataclass
class Board:
    """An emulated machine, and the folder with its unpacked runtime."""

    machine: Machine
    folder: Path

    @property
    def top(self) -> Path:
        return self.folder / "rpcsys-device"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a board's shell, without this machine's Python and its packages."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RPCSYS"))}
        return {**kept, "RPCSYS_PYTHON": str(self.machine.python)}

    def start(self, daemons: Daemons, *flags: str) -> Daemon:
        """Start the server with the board's own script; returns at once."""
        command = [str(self.top / "bin" / "rpcsys-server"), "--key", KEY, *flags]
        return daemons.launch("board", command, env={**self.environment, "PYTHONPATH": ""})


def unpacked(archive: Path, machine: Machine, folder: Path) -> Board:
    """Unpack the archive into ``folder``, which is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="fully_trusted")
    return Board(machine, folder)
