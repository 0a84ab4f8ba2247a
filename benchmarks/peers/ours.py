"""rpcsys: its own client and its own server, started as a user starts it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rpcsys
from benchmarks.models import model_input
from benchmarks.peers.memory import array
from benchmarks.peers.subject import Subject, Trial

KEY = "bench"
ANY_PORT = ("--host", "127.0.0.1", "--port", "0", "--silent")
TRACKER = ("-m", "rpcsys.tracker", *ANY_PORT)
SERVER = ("-m", "rpcsys.server", *ANY_PORT, "--key", KEY, "--import", "benchmarks.peers.device_functions")


class Rpcsys(Subject):
    server_arguments = SERVER

    @contextmanager
    def null_call(self) -> Iterator[Trial]:
        with self._connected() as session:
            yield Trial(session.get_function("bench.nothing"))

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
        """One call of a model: its inputs there, the run, its outputs back."""
        with self._connected() as session:
            model, data = session.load_module(path), model_input()
            yield Trial(lambda: model(data))

    @contextmanager
    def session(self) -> Iterator[Trial]:
        """A session and the first call on it, one session after the other."""
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


class RpcsysLease(Subject):
    """A tracker, and one server registered with it."""

    def start(self) -> None:
        self.port = start_lab(self)

    @contextmanager
    def lease(self) -> Iterator[Trial]:
        """A device asked of the tracker, the session, and the first call, one after the other."""
        with rpcsys.connect_tracker(("127.0.0.1", self.port)) as tracker:
            opened: list[Any] = []

            def run() -> None:
                session = tracker.request(KEY)
                session.get_function("bench.nothing")()
                opened.append(session)

            yield Trial(run, after=lambda: opened.pop().close())


def start_lab(subject: Subject) -> int:
    """Our tracker and a server of ours for the subject; the tracker's port."""
    port = subject.start_server(TRACKER)
    subject.start_server((*SERVER, "--tracker", f"127.0.0.1:{port}"))
    return port
