"""Daemons at the limit of their memory: they end with a line, and their service manager starts them again."""

from __future__ import annotations

import json
import resource
import socket
import struct
from pathlib import Path

from tests.live.daemons import Daemon, Daemons, wait_until
from tests.live.probe import TRACKER_MAGIC, TrackerProbe

ENDS_S = 60.0
ROOM = 24 << 20


def narrow(daemon: Daemon) -> None:
    """Give a daemon no more than a few megabytes beyond what it has."""
    pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (limit, limit))


def flood(address: tuple[str, int]) -> None:
    """Requests with as much text as they may have, until nobody reads them."""
    labels = {f"{number}-" + "x" * 200: "\N{SNOWMAN}" * 250 for number in range(16)}
    with socket.create_connection(address, timeout=5) as sock:
        sock.sendall(struct.pack("<i", TRACKER_MAGIC))
        sock.settimeout(2)
        for number in range(4000):
            ask = {"op": "request", "id": number, "key": f"key-{number}", "wait_for_key": True}
            data = json.dumps({**ask, "labels": labels}).encode()
            sock.sendall(struct.pack("<i", len(data)) + data)


def test_a_tracker_at_its_limit_ends_with_a_line_and_is_itself_again(daemons: Daemons, tmp_path: Path):
    tracker = daemons.tracker("--state-dir", str(tmp_path), "--silent")
    narrow(tracker)

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
