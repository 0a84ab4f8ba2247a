"""A tracker is served until it is to stop, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rpcsys import logs
from rpcsys.errors import ConfigError
from rpcsys.tracker import config, serving

#: What a tracker alone does without.
OF_SEVERAL = ("rpcsys.tracker.replicas", "rpcsys.tracker.sites", "rpcsys.wire.sites")


def of_several() -> set[str]:
    """Modules of trackers that are not alone."""
    return {name for name in sys.modules if name.startswith(OF_SEVERAL)}


@pytest.fixture(autouse=True)
def _logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker is the only one of its process, with the log that its command has set up."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.setup("rpcsys-tracker")


def test_it_says_where_it_is_and_stops_at_a_signal(capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> int:
        served = asyncio.create_task(serving.serve(config.parse(["--host", "127.0.0.1", "--port", "0", "--silent"])))
        out = ""
        while not out:
            await asyncio.sleep(0.01)
            out += capfd.readouterr().out
        port = json.loads(out)["port"]
        socket.create_connection(("127.0.0.1", port)).close()
        os.kill(os.getpid(), signal.SIGTERM)
        status = await served
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        return status

    before = of_several()
    assert asyncio.run(run()) == 0
    assert of_several() == before


def test_a_replica_with_a_wrong_place_does_not_start(tmp_path: Path) -> None:
    flags = ["--host", "127.0.0.1", "--port", "0", "--state-dir", str(tmp_path), "--replicate", "lab-1"]
    with pytest.raises(ConfigError, match="is no engine's address"):
        asyncio.run(serving.serve(config.parse(flags)))


def test_a_tracker_alone_loads_nothing_of_replicas_and_sites() -> None:
    code = (
        "import sys; from rpcsys.tracker import serving;"
        f"sys.exit(any(name.startswith({OF_SEVERAL}) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
