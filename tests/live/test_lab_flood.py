"""A lab's tracker under strangers: garbage, handshakes that stop half-way, wrong tokens. Members do not notice."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time

import psutil
import pytest

from rpcsys.link.link import Link
from tests.live.daemons import rss_mb, wait_until
from tests.live.labs import LabOnDisk
from tests.live.probe import LabProbe, context

pytestmark = [pytest.mark.live, pytest.mark.slow]
SLOWEST_S = 1.0  # of a member's question meanwhile; finer bounds belong to the benchmarks


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = context().wrap_bio(ssl.MemoryBIO(), outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


class Strangers:
    """Connections that say ``data``, ``count`` in all, ``at_once`` of them open."""

    def __init__(self, address, data: bytes, count: int, at_once: int) -> None:
        self.open: list[socket.socket] = []
        for _ in range(count):
            sock = socket.create_connection(address, 30)
            with contextlib.suppress(OSError):
                sock.sendall(data)
            self.open.append(sock)
            if len(self.open) > at_once:
                self.open.pop(0).close()

    def close(self) -> None:
        for sock in self.open:
            sock.close()


class Asker(threading.Thread):
    """A member who asks without pause; ``worst_s``: the longest time to an answer."""

    def __init__(self, address, credential) -> None:
        super().__init__()
        self.worst_s, self.answers = 0.0, 0
        self._link = Link.open(address, credential=credential)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            before = time.monotonic()
            self._link.ask("summary", timeout=30)
            self.worst_s = max(self.worst_s, time.monotonic() - before)
            self.answers += 1
            time.sleep(0.002)

    def end(self) -> None:
        self._over.set()
        self.join()
        self._link.close()


@pytest.mark.parametrize(
    ("data", "count", "at_once"),
    [(b"\x16\x03\x01" + b"garbage " * 60, 1000, 50), (None, 1500, 1500)],
    ids=["garbage", "half-way"],
)
def test_members_are_served_beside_strangers(tmp_path, daemons, data, count, at_once) -> None:
    lab = LabOnDisk(tmp_path)
    tracker = lab.tracker(daemons)
    asker = Asker(tracker.address, lab.keeper)
    asker.start()
    wait_until(lambda: asker.answers > 100, 30, "a member is served")
    before_mb = rss_mb([tracker.pid])
    strangers = Strangers(tracker.address, client_hello() if data is None else data, count, at_once)
    try:
        answered = asker.answers
        wait_until(lambda: asker.answers > answered + 100, 60, "a member is served meanwhile")
        assert rss_mb([tracker.pid]) - before_mb < 20
    finally:
        strangers.close()
        asker.end()
    assert asker.worst_s < SLOWEST_S

    def alone() -> bool:
        return len(psutil.Process(tracker.pid).net_connections("tcp")) == 1

    wait_until(alone, 60, "no stranger is left")
    assert rss_mb([tracker.pid]) - before_mb < 20
    with Link.open(tracker.address, credential=lab.keeper, timeout=20) as link:
        assert link.ask("whoami", timeout=20)["member"] == "mo"


def test_a_network_with_many_failures_is_read_later_and_served(tmp_path, daemons) -> None:
    lab = LabOnDisk(tmp_path)
    tracker = lab.tracker(daemons)
    with Link.open(tracker.address, credential=lab.keeper) as known:
        for _ in range(25):
            with LabProbe(tracker.address) as probe:
                probe.hello("rpcsys_p_aaaaaaaa_" + "A" * 43)
        before = time.monotonic()
        known.ask("whoami", timeout=20)
        assert time.monotonic() - before < SLOWEST_S
    with Link.open(tracker.address, credential=lab.keeper, timeout=20) as link:
        assert link.tracker["member"] == "mo"
    assert time.monotonic() - before >= 1.0
