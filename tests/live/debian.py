"""The Debian packages: built once per test run, shared by its processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tests.live.daemons import ROOT

BUILD_S = 300.0
NEEDED = "dpkg-dev debhelper dh-python python3-installer lintian"


def build(folder: Path) -> Path:
    """Run ``make deb`` into a new folder below ``folder``; that folder."""
    made = folder / "packages"
    command = [
        *("make", "-C", str(ROOT), "--old-file=.venv/.ready-dev", "deb"),
        *(f"BIN={Path(sys.executable).parent}", f"BUILD={folder / 'build'}", f"DIST={made}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False, env=_environment())
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr} (it needs: apt-get install {NEEDED})"
    return made


def packages(shared: Path) -> list[Path]:
    """The built packages of this test run."""
    folder = shared / "debian"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("packages/*.deb")):
            build(folder)
    return sorted((folder / "packages").glob("*.deb"))


def _environment() -> dict[str, str]:
    """The environment of a login shell, without the variables of the test run's make and Python."""
    foreign = ("MAKE", "MFLAGS", "PYTHON", "RPCSYS", "DEB_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
