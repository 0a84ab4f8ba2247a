"""Our tracker, our server and as many clients as a fault needs."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from tests.live.artefacts import Artefacts
from tests.live.clients import Client
from tests.live.daemons import START_S, Daemon, Daemons, alive, kill_all, queue, wait_free, wait_until

KEY = "board"
KINDS = ("rpcsys", "tvm")  # an rpcsys/1 session through our client; a TVM session through TVM's


class FaultLab:
    """A tracker and one server of two slots, that sessions of one kind are made on."""

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
        """Start both, the server with ``flags``; returns when all slots are offered."""
        self.tracker = self.daemons.tracker(flavour=tracker_flavour)
        self.server = self.daemons.server(KEY, *self.server_flags(slots), *flags, tracker=self.tracker, offers=slots)
        return self

    def server_flags(self, slots: int) -> tuple[str, ...]:
        # tvm takes two seconds to import; sessions of our own kind need not wait for it
        preload = ("--preload", "none") if self.kind == "rpcsys" else ()
        return ("--slots", str(slots), "--grace", "1", "--import", "tests.live.hostile", *preload)

    def client(self, limit_s: float = 0, kind: str | None = None) -> Client:
        """A client that asks for a device; see :meth:`Client.leased`."""
        client = Client(kind or self.kind, self.tracker, KEY, self.artefacts.hostile, limit_s)
        self.clients.append(client)
        return client

    def free(self, count: int, deadline_s: float = START_S) -> float:
        """Wait until ``count`` slots are free; how long it took, in seconds."""
        return wait_free(self.tracker, KEY, count, deadline_s)

    def pending(self, count: int, deadline_s: float = START_S) -> None:
        """Wait until ``count`` requests are in the queue."""
        wait_until(lambda: queue(self.tracker, KEY)["pending"] == count, deadline_s, f"{count} pending")

    def still_serves(self) -> None:
        """A new client gets a device and gives it back; ours, which starts in no time."""
        client = self.client(kind="rpcsys").leased()
        assert client.call("pid")["value"] == client.session_pid
        client.close()

    def stop(self) -> None:
        for client in self.clients:
            client.destroy()
        self.daemons.stop()


def all_gone(pids: Iterable[int], deadline_s: float) -> None:
    """Wait until none of the processes lives; those that still do are not left to the machine."""
    pids = list(pids)
    try:
        wait_until(lambda: not any(map(alive, pids)), deadline_s, f"none of {pids} lives")
    except AssertionError:
        kill_all(pids)
        raise


def busy(pid: int) -> None:
    """Wait until the process has computed for a while: its call is under way."""
    process = psutil.Process(pid)
    before = process.cpu_times().user
    wait_until(lambda: process.cpu_times().user > before + 0.05, START_S, f"{pid} computes")
