"""Clients that a session does not read while a call runs and its window is full: the server still sees their end."""

from __future__ import annotations

import contextlib
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rpcsys
from rpcsys import module
from tests.live import deployed
from tests.live.daemons import START_S, Daemons, wait_free
from tests.live.probe import SessionProbe, TrackerProbe

KEY = "board"
PROMISED_S = 40.0
HELLO, CALL, ERROR, CHUNK, FREE = 1, 2, 4, 8, 10
FULL_S = 2.0
"""After this time without progress, the server has stopped reading."""


def frame(kind: int, call_id: int, head: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode() if head else b""
    return struct.pack("<IBBHIIQ", len(text), kind, 0, 0, 0, call_id, len(body)) + text + body


def read_frame(probe: SessionProbe) -> tuple[int, dict[str, Any]]:
    head_bytes, kind, _, _, _, _, body_bytes = struct.unpack("<IBBHIIQ", probe.read(24))
    head = json.loads(probe.read(head_bytes) or b"{}")
    probe.read(body_bytes)
    return kind, head


FLOODS = {
    "file": frame(CHUNK, 2, {}, bytes(1 << 20)),
    "heads": frame(CALL, 3, {"f": "testing.echo", "a": ["x" * 1000] * 900}),
    "names": frame(FREE, 0, {"ids": list(range(10_000, 20_000))}),
}


def flood(probe: SessionProbe, piece: bytes) -> None:
    """Send until the server stops reading."""
    probe.socket.settimeout(FULL_S)
    with contextlib.suppress(TimeoutError):
        while True:
            probe.socket.sendall(piece)


def served(daemons: Daemons, route: str) -> Callable[[], SessionProbe]:
    tracker = daemons.tracker()
    flags = ("--tvm", "off", "--preload", "none")
    entrance = tracker
    if route == "direct":
        daemons.server(KEY, *flags, tracker=tracker)
    else:
        entrance = daemons.proxy("--tracker", tracker.where)
        daemons.behind(entrance, KEY, *flags, flavour="ours").await_ready_line()
    wait_free(tracker, KEY, 1, START_S)

    def lease() -> SessionProbe:
        with TrackerProbe(entrance.address) as asking:
            host, port, key = asking.lease(KEY)
            probe = SessionProbe((host, port), key, "-session=rpcsys/1")
            probe.socket.sendall(frame(HELLO, 0, {"version": 1}))
            assert read_frame(probe)[0] == HELLO
            probe.socket.sendall(frame(CALL, 1, {"f": "testing.sleep", "a": [3600]}))
        return probe

    lease.tracker = tracker
    return lease


@pytest.mark.slow
@pytest.mark.parametrize("route", ["direct", "proxied"])
@pytest.mark.parametrize("what", FLOODS)
def test_the_end_of_a_client_that_is_not_read_is_seen(daemons: Daemons, route: str, what: str):
    lease = served(daemons, route)
    probe = lease()
    flood(probe, FLOODS[what])
    probe.close()
    wait_free(lease.tracker, KEY, 1, PROMISED_S)
    with rpcsys.connect_tracker(lease.tracker.address) as tracker:
        assert tracker.leases() == []


@pytest.mark.parametrize("route", ["direct", "proxied"])
def test_a_client_that_exceeds_its_window_loses_its_session(daemons: Daemons, route: str):
    lease = served(daemons, route)
    with lease() as probe:
        with contextlib.suppress(ConnectionError, TimeoutError):
            flood(probe, frame(CALL, 2, {"f": "testing.echo", "a": ["x" * 4000]}))
        wait_free(lease.tracker, KEY, 1, PROMISED_S)


def test_a_client_of_a_deployed_module_that_exceeds_its_window_is_dropped(daemons: Daemons, tmp_path: Path):
    library = tmp_path / "slow.so"
    module.export_library(module.python({"main": time.sleep}), library)
    deployed.put(tmp_path / "deploy", "slow", library)
    flags = ("--deploy", str(tmp_path / "deploy"), "--deploy-queue", "1000")
    server = daemons.server(KEY, *deployed.FLAGS, *flags)
    with SessionProbe(server.address, "", "-session=rpcsys/1 -serve=slow") as probe:
        assert read_frame(probe)[0] == HELLO
        calls = [frame(CALL, number, {"f": [0, "main"], "a": [3600]}) for number in range(1, 400)]
        probe.socket.sendall(frame(HELLO, 0, {"version": 1}) + b"".join(calls))
        kind, error = read_frame(probe)
        assert (kind, error["type"]) == (ERROR, "ProtocolError")
        assert probe.ended()
