"""The processes of a lab that hold others' secrets leave no core file."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rpcsys.link import credential
from rpcsys.wire.tokens import HolderKind
from tests.live.daemons import START_S, Daemons, wait_until
from tests.live.labs import LabOnDisk
from tests.live.probe import SESSION_MAGIC, SessionProbe, TrackerProbe
from tests.live.processes import alive


@pytest.fixture(autouse=True)
def _allowed(tmp_path: Path) -> Iterator[None]:
    """Cores are written here, into the folder where a process works."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    subprocess.run([sys.executable, "-c", "import os; os.abort()"], cwd=tmp_path)
    cores = [*tmp_path.glob("core*")]
    if not cores:
        pytest.skip("this system keeps no core files in the working directory")
    for path in cores:
        path.unlink()
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def file_of(lab: LabOnDisk, held: credential.Credential) -> str:
    path = lab.path.parent / f"{held.member}.json"
    credential.write(str(path), held)
    return str(path)


def aborted(pid: int, folder: Path) -> list[str]:
    """End a process with the signal for a core file; the core files below ``folder``."""
    os.kill(pid, signal.SIGABRT)
    wait_until(lambda: not alive(pid), START_S, "it has ended")
    return [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names if name[:4] == "core"]


def test_what_has_secrets_leaves_no_core(daemons: Daemons, tmp_path: Path) -> None:
    lab = LabOnDisk(tmp_path)
    keeper, board = file_of(lab, lab.keeper), file_of(lab, lab.board("b1"))
    gate = file_of(lab, lab.join("gate", HolderKind.PROXY))
    tracker = lab.tracker(daemons)
    proxy = daemons.proxy("--tracker", tracker.where, "--lab", gate)
    connect = daemons.launch(
        "connect", (sys.executable, "-m", "rpcsys.forward", "--listen", "127.0.0.1:0"), env={"RPCSYS_LAB": keeper}
    )
    connect.await_ready_line()
    server = daemons.server("rpi4", "--name", "b1", "--lab", board, tracker=tracker)
    with TrackerProbe(connect.address) as desk:
        host, port, key = desk.lease("rpi4")
        with SessionProbe((host, port), key) as probe:
            assert probe.code == SESSION_MAGIC
            (front,) = (pid for pid in server.tree() if psutil.Process(pid).name() == "rpcsys-front")
    for pid in [front, *(daemon.pid for daemon in (server, connect, proxy, tracker))]:
        name = psutil.Process(pid).name()
        assert aborted(pid, tmp_path) == [], name
