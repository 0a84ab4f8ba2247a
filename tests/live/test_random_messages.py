"""Many peers send a tracker known messages in random order and with random content; all its features are on."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sqlite3
import struct
import urllib.request

import pytest

from rpcsys.client import connect_tracker
from rpcsys.wire.control import TO_TRACKER
from tests.live.daemons import free_port, wait_until
from tests.live.probe import TRACKER_MAGIC

PEERS = 24
MESSAGES = 6_000
KEYS = ("rpi4", "gpu", "k:1", "ü")
ODD = [
    *(None, True, 0, -1, 2**53, 2**64, -(2**70), 1e308, -0.0, 0.5, "", "a b", "x" * 300, "é" * 200),
    *("\u2028", "\x00", "\ud800", ">=nan", [], [[]], {}, {"a": 1}, ["rpi4"], {"rev": ">=1e400"}),
]
LIKELY = {
    "key": KEYS,
    "priority": (1, 2, 5),
    "session_timeout": (None, 1),
    "wait_timeout": (None, 0.01),
    "labels": ({}, {"rev": "2"}, {"cores": ">=4"}, {"server": "board"}, {"tvm": ">=0.9,<1"}),
    "count": (1, 1, 2),
    "wait_for_key": (True, False),
    "name": ("board", "other"),
    "address": (None, "10.0.0.9"),
    "loads": ([], [".so"]),
    "identity": ("", "1"),
    "cleaned": ({}, {"processes": 1}),
    "readings": ({}, {"load": 0.5}),
    "problem": ("", "too hot"),
    "server": ("board", "board-2", "127.0.0.1:9090"),
    "slots": (1, 3),
    "port": (None, 9090),
    "outcome": ("closed", "crashed", "unused"),
    "fault": ("", "dead"),
    "request": range(8),
    "limit": (1, 4096),
    "after": (None, [0, 0], [1, 5], [2, 10**13]),
}


class Words:
    """Random messages from known fields and from the leases and tickets that the tracker has sent."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.leases: list[tuple[str, int]] = [("none", 1)]
        self.tickets = ["1@a"]

    def message(self):
        choose, kind = self.random, self.random.random()
        key = choose.choice(KEYS)
        if kind < 0.3:
            return [3, key, [9090, f"{key}:{choose.randrange(10**9)}"], choose.choice([None, "10.0.0.9"])]
        if kind < 0.4:
            return [4, key, "", choose.choice([1, 2, self.odd()])]
        if kind < 0.5:
            return [choose.randrange(1, 8), *(self.odd() for _ in range(choose.randrange(4)))]
        return self.ours(choose.choice(list(TO_TRACKER)))

    def ours(self, op):
        choose = self.random
        lease, epoch = choose.choice(self.leases[-40:])
        known = {"lease": (lease,), "epoch": (epoch,), "ticket": (None, choose.choice(self.tickets[-40:]))}
        running = [{"lease": lease, "epoch": epoch, "since_s": choose.choice([0, 5, 1e300])}]
        likely = {**LIKELY, **known, "running": ([], running)}
        message = {"op": op, "id": choose.randrange(8)}
        for name in TO_TRACKER[op].__dataclass_fields__:
            if name != "id" and choose.random() < 0.8:
                message[name] = choose.choice(likely[name]) if name in likely else self.odd()
                if choose.random() < 0.02:
                    message[name] = self.odd()
        return message

    def odd(self):
        return self.random.choice(ODD)

    def learn(self, data: bytes) -> None:
        """Store the leases and tickets in whole frames of ``data``."""
        while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "little")):
            message, data = json.loads(data[4:end]), data[end:]
            if isinstance(message, dict):
                leases = message.get("leases", [message]) if isinstance(message.get("leases", []), list) else []
                self.leases += [(one["lease"], one["epoch"]) for one in leases if {"lease", "epoch"} <= set(one)]
                self.tickets += [message["ticket"]] if message.get("ticket") else []


def framed(message) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack("<i", len(data)) + data


def connected(address, words) -> socket.socket:
    peer = socket.create_connection(address)
    hello = [1, {"op": "hello", "version": "0", "user": words.random.choice(["ann", "bob"])}]
    peer.sendall(struct.pack("<i", TRACKER_MAGIC) + framed(hello))
    peer.recv(4, socket.MSG_WAITALL)
    peer.setblocking(False)
    return peer


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_messages_leave_the_tracker_running(daemons, tmp_path, seed):
    words, http = Words(seed), free_port()
    flags = ("--state-dir", str(tmp_path / "state"), "--max-session", "rpi4=5")
    tracker = daemons.tracker(*flags, "--http-port", str(http))
    peers = []
    for number in range(MESSAGES):
        while len(peers) < PEERS:
            peers.append(connected(tracker.address, words))
        peer = words.random.choice(peers)
        try:
            peer.sendall(framed(words.message()))
            with contextlib.suppress(BlockingIOError):
                words.learn(peer.recv(1 << 16))
            left = words.random.random() < 0.01
        except OSError:  # the tracker dropped it, or the peer does not read
            left = True
        if left:
            peers.remove(peer)
            peer.close()
        if number % 1000 == 999:
            for page in ("/api/lab", "/api/summary", "/api/day", "/metrics"):
                with urllib.request.urlopen(f"http://127.0.0.1:{http}{page}", timeout=30) as reply:
                    assert reply.read()
    with connect_tracker(tracker.address) as viewer:
        assert viewer.summary()["queue_info"]
        wait_until(viewer.usage, 30, "leases are in the history")
        assert viewer.history()
    for peer in peers:
        peer.close()
    tracker.kill()
    assert "Traceback" not in tracker.stderr()
    again = daemons.tracker(*flags)  # it loads the state that the peers have left
    with connect_tracker(again.address) as viewer:
        viewer.summary()
    assert again.terminate() == 0
    assert "Traceback" not in again.stderr()
    with sqlite3.connect(tmp_path / "state" / "tracker.sqlite") as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
