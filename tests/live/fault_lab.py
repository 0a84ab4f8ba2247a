"""A lab for faults: our tracker, our server and any number of clients."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from tests.live.artefacts import Artefacts
from tests.live.clients import Client
from tests.live.daemons import START_S, Daemon, Daemons, alive, kill_all, queue, wait_free, wait_until

KEY = "board"
KINDS = ("rpcsys", "tvm")  # an rpcsys/1 session through our client; a TVM session through TVM's


class FaultLab:
    """A tracker, one server, and clients that open sessions of one ``kind``."""

    def __init__(self, daemons: Daemons, artefacts: Artefacts, kind: str) -> None:
        self.daemons = daemons
        self.artefacts = artefacts
        self.kind = kind
        self.clients: list[Client] = []
        self.tracker: Daemon
        self.server: Daemon

    @property
    def started(self) -> list[Daemon]:
        return self.daemons.started

    def start(self, slots: int = 2, tracker_flavour: str = "ours", *flags: str) -> FaultLab:
        """Start both daemons, the server with ``flags``; returns when all slots are offered."""
        self.tracker = self.daemons.tracker(flavour=tracker_flavour)
        self.server = self.daemons.server(KEY, *self.server_flags(slots), *flags, tracker=self.tracker, offers=slots)
        return self

    def server_flags(self, slots: int) -> tuple[str, ...]:
        # importing tvm takes two seconds; rpcsys/1 sessions do not need it
        preload = ("--preload", "none") if self.kind == "rpcsys" else ()
        return ("--slots", str(slots), "--grace", "1", "--import", "tests.live.session_faults", *preload)

    def client(self, limit_s: float = 0, kind: str | None = None) -> Client:
        """A client that requests a device; see :meth:`Client.leased`."""
        client = Client(kind or self.kind, self.tracker, KEY, self.artefacts.session_faults, limit_s)
        self.clients.append(client)
        return client

    def free(self, count: int, deadline_s: float = START_S) -> float:
        """Wait until ``count`` slots are free; the seconds that it took."""
        return wait_free(self.tracker, KEY, count, deadline_s)

    def pending(self, count: int, deadline_s: float = START_S) -> None:
        """Wait until ``count`` requests are in the queue."""
        wait_until(lambda: queue(self.tracker, KEY)["pending"] == count, deadline_s, f"{count} pending")

    def still_serves(self) -> None:
        """A new client of ours leases a device and releases it."""
        client = self.client(kind="rpcsys").leased()
        assert client.call("pid")["value"] == client.session_pid
        client.close()

    def stop(self) -> None:
        for client in self.clients:
            client.destroy()
        self.daemons.stop()


def all_gone(pids: Iterable[int], deadline_s: float) -> None:
    """Wait until all processes have ended. After the deadline, kill those that live and raise AssertionError."""
    pids = list(pids)
    try:
        wait_until(lambda: not any(map(alive, pids)), deadline_s, f"none of {pids} lives")
    except AssertionError:
        kill_all(pids)
        raise


def busy(pid: int) -> None:
    """Wait until the process has used CPU time: its call runs."""
    process = psutil.Process(pid)
    before = process.cpu_times().user
    wait_until(lambda: process.cpu_times().user > before + 0.05, START_S, f"{pid} computes")
