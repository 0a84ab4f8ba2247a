"""Our tracker with replicas and an engine, and without: its rate, and what a fault costs a lab of many boards."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.peers import memory_use, ours
from benchmarks.peers.subject import Once, Subject, Trial
from benchmarks.peers.trackers import KEY, REQUEST, Load, WholeFrames, free_port
from benchmarks.processes import Process, cpu_seconds
from rpcsys.errors import RpcsysError
from rpcsys.link.address import Addresses
from rpcsys.link.targets import open_link, shared
from tests import etcd

START_S = BACK_S = 60.0
IDLE_S = 5.0  # for the CPU time of a tracker with nothing to do
PACE_S = 0.002  # between two leases of the desk
SHARES = 2  # processes that share the boards: each board has two descriptors


class Tracker:
    """One tracker, which can be started again."""

    def __init__(self, subject: Subject, state: Path, *flags: str) -> None:
        self._subject, self._flags = subject, flags
        self.port, self.web = free_port(), free_port()
        self._state = state
        self.start()

    def start(self) -> None:
        place = ("--host", "127.0.0.1", "--port", str(self.port), "--port-end", str(self.port + 1))
        kept = ("--state-dir", str(self._state), "--http-port", str(self.web))
        self._subject.start_server(("-m", "rpcsys.tracker", *place, *kept, *self._flags))
        self.process = self._subject._servers[-1]

    def wait_leading(self) -> None:
        until(lambda: self._says("/leader"), f"the tracker at {self.port} leads")

    def _says(self, path: str) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.web}{path}", timeout=2) as answer:
            return bool(answer.status == 200)
        return False


class Trackers(Subject):
    """Each round has a lab of its own."""

    count = 1

    @contextmanager
    def engine(self) -> Iterator[tuple[str, ...]]:
        """The flags of a tracker on the engine."""
        yield ()

    @contextmanager
    def lab(self) -> Iterator[list[Tracker]]:
        """The trackers; the first leads."""
        with ExitStack() as stack:
            flags = stack.enter_context(self.engine())
            folder = Path(tempfile.mkdtemp(dir=self.place.folder))
            found: list[Tracker] = []
            stack.callback(lambda: [each.process.stop() for each in found])
            for number in range(self.count):
                found.append(Tracker(self, folder / str(number), *flags))
                if flags:
                    found[0].wait_leading()
            yield found

    @contextmanager
    def allocate(self, clients: int) -> Iterator[Trial]:
        """As many clients and servers at once."""
        with self.lab() as trackers, ExitStack() as stack:
            desks, boards = (
                [stack.enter_context(closing(WholeFrames(trackers[0].port))) for _ in range(clients)] for _ in range(2)
            )
            yield Load(desks, boards, self.cpu_seconds, 2.0)

    @contextmanager
    def wait(self) -> Iterator[Trial]:
        """One client that requests a free device."""
        with self.lab() as trackers:
            port = trackers[0].port
            with closing(WholeFrames(port)) as client, closing(WholeFrames(port)) as server:

                def request() -> None:
                    client.send([REQUEST, KEY, "", 1])
                    client.await_reply()

                server.offer()
                yield Trial(request, after=server.offer)

    @contextmanager
    def fault(self, how: str, boards: int, waiting: int) -> Iterator[Trial]:
        """What a leader that is ``killed``, ``paused`` or ``stopped`` costs."""
        with self.lab() as trackers:
            yield Once(lambda: self._fault(trackers, how, boards, waiting))

    @contextmanager
    def many_boards(self, number: int) -> Iterator[Trial]:
        """What boards cost a tracker, and how long they take to be back after it was killed."""
        with self.lab() as trackers:
            yield Once(lambda: self._many_boards(trackers[0], number))

    def strike(self, leader: Tracker, how: str) -> None:
        """Cause the fault. Without replicas the tracker is started again at once."""
        if how == "killed":
            leader.process.kill()
        else:
            os.kill(leader.process.pid, {"paused": signal.SIGSTOP, "stopped": signal.SIGTERM}[how])
        if self.count == 1:
            leader.process.stop()
            leader.start()

    def _fault(self, trackers: list[Tracker], how: str, boards: int, waiting: int) -> dict[str, float]:
        ports = [tracker.port for tracker in trackers]
        with ExitStack() as stack:
            shares = [self._peers(stack, "boards", boards // SHARES, ports) for _ in range(SHARES)]
            clients = self._peers(stack, "clients", waiting, ports)
            before = [each.receive(BACK_S) for each in (*shares, clients)][-1]
            desk = Desk(ports)
            desk.lease()
            begun = time.monotonic()
            self.strike(trackers[0], how)
            term = desk.term
            while desk.lease() == term and self.count > 1:  # the old leader may still have served this one
                pass
            served = time.monotonic()
            if how == "paused":
                os.kill(trackers[0].process.pid, signal.SIGCONT)
            back = max(each.receive(BACK_S)["at"] for each in shares)
            after = clients.receive(BACK_S)
        lost = sum(map(int.__ne__, before["positions"], after["positions"]))
        return {"gap": served - begun, "back": max(0.0, back - served), "places_lost": float(lost)}

    def _many_boards(self, tracker: Tracker, number: int) -> dict[str, float]:
        empty = memory_use.used([tracker.process.pid])["bytes"]
        with ExitStack() as stack:
            shares = [self._peers(stack, "boards", number // SHARES, [tracker.port]) for _ in range(SHARES)]
            for each in shares:
                each.receive(BACK_S)
            time.sleep(ours.SETTLED_S)
            used = memory_use.used([tracker.process.pid])["bytes"] - empty
            idle = -cpu_seconds(tracker.process.pid)
            time.sleep(IDLE_S)
            idle += cpu_seconds(tracker.process.pid)
            self.strike(tracker, "killed")
            back = [each.receive(BACK_S) for each in shares]
        took = max(each["at"] for each in back) - min(each["begun"] for each in back)
        return {"bytes": used / number, "idle": idle / IDLE_S, "seconds": took}

    def _peers(self, stack: ExitStack, kind: str, count: int, ports: list[int]) -> Process:
        """Boards or clients, on the core of the measuring process."""
        words = ("-m", "benchmarks.peers.many_boards", kind, str(count), ",".join(map(str, ports)))
        core = next(iter(os.sched_getaffinity(0)))
        made = Process(words, core=core, log=self.place.folder / f"{kind}.log")
        stack.callback(made.stop)
        return made


class Replicas(Trackers):
    """A leader and a standby, on three members of etcd beside them."""

    count = 2

    @contextmanager
    def engine(self) -> Iterator[tuple[str, ...]]:
        with etcd.running(3) as members:
            yield ("--replicate", str(members.place()), "--advertise", "127.0.0.1")


class ReplicasElsewhere(Trackers):
    """A leader alone, on an engine whose answers take 2 ms and no time of these cores."""

    @contextmanager
    def engine(self) -> Iterator[tuple[str, ...]]:
        port = self.start_server(("-m", "benchmarks.peers.distant_engine"))
        yield ("--replicate", f"etcd://127.0.0.1:{port}/lab", "--advertise", "127.0.0.1")


class Desk:
    """A client that leases one device after another from whoever leads."""

    def __init__(self, ports: list[int]) -> None:
        places = [("127.0.0.1", port) for port in ports]
        self._target = shared(Addresses(places) if len(places) > 1 else places[0])
        self._link: Any = None
        self.term = 0

    def lease(self) -> int:
        """Have a device, and give it back; the term of the tracker that gave it. Raises TimeoutError."""
        deadline = time.monotonic() + BACK_S
        while time.monotonic() < deadline:
            with suppress(RpcsysError, OSError):
                if self._link is None:
                    self._link = open_link(self._target, timeout=1.0, user="desk")
                leased = self._link.ask("request", timeout=5.0, key=KEY)["leases"][0]
                self._link.ask("release", timeout=5.0, lease=leased["lease"])
                self.term = self._link.tracker.get("term", 0)
                time.sleep(PACE_S)
                return self.term
            if self._link is not None:
                self._link.close()
                self._link = None
            time.sleep(PACE_S)
        raise TimeoutError(f"no lease for {BACK_S:g} s")


def until(happened: Callable[[], bool], what: str) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + START_S
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {START_S:g} s until {what}")
        time.sleep(0.02)
