"""rpcsys: our client and our server, started as a user starts it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rpcsys
from benchmarks.models import ADD_FUNCTION, compiled_add, model_input
from benchmarks.peers import memory_use
from benchmarks.peers.memory import array
from benchmarks.peers.subject import EachAtOnce, Once, Subject, Trial, TwoAtOnce
from benchmarks.processes import Process, tree
from rpcsys.secure_lab import KEEPER, LabCredentials

KEY = "bench"
SETTLED_S = 2.0  # until a child for the next session waits, and freed memory is given back
ANY_PORT = ("--host", "127.0.0.1", "--port", "0", "--silent")
TRACKER = ("-m", "rpcsys.tracker", *ANY_PORT)
DEVICE = ("--key", KEY, "--import", "benchmarks.peers.device_functions")
SERVER = ("-m", "rpcsys.server", *ANY_PORT, *DEVICE)
#: One without functions of its own, as TVM's server is: TVM's clients have another zygote there.
PLAIN_SERVER = ("-m", "rpcsys.server", *ANY_PORT, "--key", KEY)


@contextmanager
def board_on_all_cores(folder: Path, *flags: str) -> Iterator[str]:
    """A server on this machine that may use all its cores; its address."""
    server = Process(("-m", "rpcsys.server", *ANY_PORT, *flags), core=0, log=folder / "server.log")
    try:
        port = server.receive()["port"]
        for pid in tree(server.pid):
            os.sched_setaffinity(pid, range(os.cpu_count() or 1))
        yield f"127.0.0.1:{port}"
    finally:
        server.stop()


class Rpcsys(Subject):
    server_arguments = SERVER

    @contextmanager
    def null_call(self) -> Iterator[Trial]:
        with self._connected() as session:
            yield Trial(session.get_function("bench.nothing"))

    @contextmanager
    def pipelined_calls(self, batch: int) -> Iterator[Trial]:
        """Null calls that do not wait for each other: submit a whole batch, then take all results."""
        with self._connected() as session:
            nothing = session.get_function("bench.nothing")

            def run() -> None:
                for future in [nothing.submit() for _ in range(batch)]:
                    future.result()

            yield Trial(run, times=batch)

    @contextmanager
    def mapped_calls(self, batch: int) -> Iterator[Trial]:
        """Calls of one small argument by `RemoteFunction.map`."""
        with self._connected() as session:
            nothing = session.get_function("bench.nothing")
            yield Trial(lambda: list(nothing.map([None] * batch)), times=batch)

    @contextmanager
    def to_device(self, size: int) -> Iterator[Trial]:
        with self._connected() as session:
            sink, data = session.get_function("bench.sink"), array(size)
            yield Trial(lambda: sink(data))

    @contextmanager
    def from_device(self, size: int) -> Iterator[Trial]:
        with self._connected() as session:
            source = session.get_function("bench.source")
            assert source(size).nbytes == size
            yield Trial(lambda: source(size))

    @contextmanager
    def inference(self, path: str) -> Iterator[Trial]:
        """One call of a model: send its inputs, run it, receive its outputs."""
        with self._connected() as session:
            model, data = session.load_module(path), model_input()
            yield Trial(lambda: model(data))

    @contextmanager
    def compiled_function(self, path: str, size: int) -> Iterator[Trial]:
        """One call of a function compiled by TVM: send its input, run it, receive its output."""
        with self._connected() as session:
            add = session.load_module(compiled_add(path, size))[ADD_FUNCTION]
            data, output = array(size), rpcsys.empty(size // 4)
            assert add(data, output)[0] == data[0] + 1
            yield Trial(lambda: add(data, output))

    @contextmanager
    def opening(self, pause_s: float, held_s: float = 0.0) -> Iterator[Trial]:
        """Open sessions in turn, each held for ``held_s``; ``pause_s`` between the end of one and the next."""
        opened: list[Any] = []

        def after() -> None:
            time.sleep(held_s)
            opened.pop().close()
            time.sleep(pause_s)

        yield Trial(lambda: opened.append(self._connect()), after)

    @contextmanager
    def openings_at_once(self, number: int, pause_s: float) -> Iterator[Trial]:
        """Open ``number`` sessions at the same time; ``pause_s`` between the end of them and the next ones."""
        opened: list[Any] = []

        def after() -> None:
            while opened:
                opened.pop().close()
            time.sleep(pause_s)

        yield EachAtOnce([lambda: opened.append(self._connect())] * number, after)

    @contextmanager
    def session(self) -> Iterator[Trial]:
        """A session and its first call, in turn."""
        opened: list[Any] = []

        def run() -> None:
            session = self._connect()
            session.get_function("bench.nothing")()
            opened.append(session)

        yield Trial(run, after=lambda: opened.pop().close())

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with self._connect() as session:
            if session.info["capabilities"].get("numpy", False) and self.place.hide_numpy:
                raise RuntimeError("the server found the numpy that was hidden from it")
            yield session

    def _connect(self) -> Any:
        return rpcsys.connect("127.0.0.1", self.port, key=KEY)


class RpcsysEightSlots(Rpcsys):
    server_arguments = (*SERVER, "--slots", "8")


class RpcsysTwoSessions(TwoAtOnce, Rpcsys):
    """One server, two sessions."""

    server_arguments = (*SERVER, "--slots", "2")


class RpcsysLease(Subject):
    """A tracker with one registered server."""

    def start(self) -> None:
        self.port = start_lab(self)

    @contextmanager
    def lease(self, pause_s: float = 0.0) -> Iterator[Trial]:
        """Request a device from the tracker, open the session, and make the first call, in turn.

        ``pause_s`` between the end of one session and the next.
        """
        with rpcsys.connect_tracker(("127.0.0.1", self.port)) as tracker:
            opened: list[Any] = []

            def run() -> None:
                session = tracker.request(KEY)
                session.get_function("bench.nothing")()
                opened.append(session)

            def after() -> None:
                opened.pop().close()
                time.sleep(pause_s)

            yield Trial(run, after)


class RpcsysLabLease(RpcsysLease):
    """The same in a closed lab."""

    def start(self) -> None:
        self.port = start_closed_lab(self).port


class Board(Subject):
    """A server with a tracker, without a session."""

    def start(self) -> None:
        start_lab(self)

    @contextmanager
    def memory(self) -> Iterator[Trial]:
        """What the server's processes use."""
        time.sleep(SETTLED_S)
        yield Once(lambda: memory_use.used(tree(self._servers[-1].pid)))


class LabBoard(Board):
    """The same in a closed lab."""

    def start(self) -> None:
        start_closed_lab(self)


def start_lab(subject: Subject, server: tuple[str, ...] = SERVER) -> int:
    """Start our tracker and our server for the subject; the tracker's port."""
    port = subject.start_server(TRACKER)
    subject.start_server((*server, "--tracker", f"127.0.0.1:{port}"))
    return port


def start_closed_lab(subject: Subject) -> LabCredentials:
    """The same for a closed lab, whose keeper this process and those that it starts are."""
    folder = subject.place.folder / type(subject).__name__
    folder.mkdir()
    lab = LabCredentials(folder, "127.0.0.1", {KEY: KEY})
    own = ("--host", "127.0.0.1", "--silent", "--port", str(lab.port))
    subject.start_server(("-m", "rpcsys.tracker", *own, "--lab", str(lab.lab)))
    member = ("--name", KEY, "--lab", str(lab.path(KEY)))
    subject.start_server((*SERVER, "--tracker", f"127.0.0.1:{lab.port}", *member))
    os.environ["RPCSYS_LAB"] = str(lab.path(KEEPER))
    return lab
