"""Virtual environments of the tests' own, for packages that do not go together with ours.

Made at their first use from the index that pip is configured with, and kept in the tests' cache folder for later runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.live.emulated import store
from tests.live.sdist import run


@dataclass(frozen=True)
class Environment:
    """An environment, and what pip installs into it."""

    name: str
    packages: tuple[str, ...]

    def python(self) -> Path:
        """Its interpreter. The first process that asks makes the environment (some 400 MB), while others wait."""
        digest = hashlib.sha256(" ".join([sys.version, *self.packages]).encode()).hexdigest()
        folder = store() / f"{self.name}-{digest[:12]}"
        with folder.with_name(folder.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                shutil.rmtree(folder, ignore_errors=True)
                run([sys.executable, "-m", "venv", str(folder)])
                run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *self.packages])
                (folder / "done").touch()
        return folder / "bin" / "python"


#: Another inference server, with a runtime of the tests' for ONNX files (`tests.live.mlserver_runtime`).
MLSERVER = Environment("mlserver", ("mlserver~=1.7.1", "onnxruntime>=1.20", "tritonclient[grpc,http]"))
#: Clients, and stubs as other people compile them.
KSERVE = Environment("kserve", ("kserve~=0.21.0",))
SCHEMATHESIS = Environment("schemathesis", ("schemathesis~=4.32",))
