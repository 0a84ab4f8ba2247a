"""A daemon without memory ends with one log line; a service manager restarts it."""

from __future__ import annotations

import json
import resource
import socket
import struct
from pathlib import Path

from tests.live.daemons import Daemon, Daemons, wait_until
from tests.live.probe import TRACKER_MAGIC, TrackerProbe

ENDS_S = 60.0
MARGIN = 24 << 20


def limit_memory(daemon: Daemon) -> None:
    """Limit a daemon's address space to its present size plus 24 MB."""
    pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MARGIN
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (limit, limit))


def flood(address: tuple[str, int]) -> None:
    """Send requests with the largest allowed labels until the tracker stops reading."""
    labels = {f"{number}-" + "x" * 200: "\N{SNOWMAN}" * 250 for number in range(16)}
    with socket.create_connection(address, timeout=5) as sock:
        sock.sendall(struct.pack("<i", TRACKER_MAGIC))
        sock.settimeout(2)
        for number in range(4000):
            ask = {"op": "request", "id": number, "key": f"key-{number}", "wait_for_key": True}
            data = json.dumps({**ask, "labels": labels}).encode()
            sock.sendall(struct.pack("<i", len(data)) + data)


def test_a_tracker_without_memory_ends_with_one_line_and_restarts(daemons: Daemons, tmp_path: Path):
    tracker = daemons.tracker("--state-dir", str(tmp_path), "--silent")
    limit_memory(tracker)

    def ended() -> bool:
        try:
            flood(tracker.address)
        except OSError:
            pass
        return not tracker.running()

    wait_until(ended, ENDS_S, "the tracker ends")
    assert tracker.process.returncode == 1
    assert "Traceback" not in tracker.stderr()
    assert tracker.stderr().count("no memory is left") == 1
    again = daemons.tracker("--state-dir", str(tmp_path), port=tracker.address[1])
    with TrackerProbe(again.address) as probe:
        assert probe.ask([1]) == 0
