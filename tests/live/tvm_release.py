"""Another release of TVM beside the installed one, in a virtual environment of its own in the tests' cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.live.emulated import store
from tests.live.sdist import run

CLIENT = Path(__file__).with_name("tvm_release_client.py")


@dataclass(frozen=True)
class Release:
    """A release, and what pip installs for it: the apache-tvm-ffi that was current when it appeared."""

    version: str
    packages: tuple[str, ...]

    def python(self) -> Path:
        """The environment's interpreter; made at the first use (400 MB), while other processes wait."""
        digest = hashlib.sha256(" ".join([sys.version, *self.packages]).encode()).hexdigest()
        folder = store() / f"tvm-{self.version}-{digest[:12]}"
        with folder.with_name(folder.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                shutil.rmtree(folder, ignore_errors=True)
                run([sys.executable, "-m", "venv", str(folder)])
                run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *self.packages])
                (folder / "done").touch()
        return folder / "bin" / "python"


RELEASES = {"0.25": Release("0.25", ("apache-tvm[rpc]~=0.25.0", "apache-tvm-ffi==0.1.12"))}
