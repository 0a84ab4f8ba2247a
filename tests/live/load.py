"""Load from clients until it is stopped: ours, TVM's, and raw clients that abandon their leases."""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import rpcsys
from rpcsys.errors import RpcsysError
from tests.live.abandoning_client import AbandoningClient, random_step
from tests.live.daemons import ROOT, reaper
from tests.live.intervals import Held

WAIT_S = 20.0
END_S = 60.0
AGAIN_S = 0.05
TVM_S = 8  # the limit for one lease of TVM's client; whole seconds for alarm(2)


class Load:
    """Threads of clients. ``held``: intervals of leases; ``done``: calls and leases; ``errors``: counted by name."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.errors: collections.Counter[str] = collections.Counter()
        self.done: collections.Counter[str] = collections.Counter()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def ours(self, address: str, key: str, count: int) -> None:
        """Start ``count`` of our clients, which call, upload, and leave processes behind."""
        for seed in range(count):
            self._start(self._ours, address, key, random.Random(seed))

    def raw(self, address: tuple[str, int], key: str, count: int) -> None:
        """Start ``count`` raw clients; each abandons its lease after a random step."""
        for seed in range(count):
            self._start(self._raw, address, key, seed)

    def total(self) -> int:
        """The number of calls and leases that are done."""
        return sum(list(self.done.values()))  # of a copy: the threads still run

    def stop(self) -> None:
        """AssertionError if a thread does not end, or has seen an error of a wrong class."""
        self._stop.set()
        for thread in self._threads:
            thread.join(END_S)
        assert not any(thread.is_alive() for thread in self._threads)
        assert not [name for name in self.errors if name.startswith("unexpected")], self.errors

    def _start(self, work: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def _ours(self, address: str, key: str, chance: random.Random) -> None:
        while not self._stop.is_set():
            try:
                with rpcsys.connect_tracker(address) as tracker:
                    while not self._stop.is_set():
                        with tracker.request(key, wait_timeout=WAIT_S) as session:
                            self._use(session, chance)
            except RpcsysError as error:
                self.errors[type(error).__name__] += 1
                time.sleep(AGAIN_S)
            except Exception as error:  # no error of rpcsys.errors
                self.errors[f"unexpected: {error!r}"] += 1
                time.sleep(AGAIN_S)

    def _use(self, session: rpcsys.Session, chance: random.Random) -> None:
        echo = session.get_function("testing.echo")
        board = session.get_function("fault.workdir")().rpartition("/session-")[0]
        since = until = time.monotonic()
        try:
            for number in range(chance.randrange(1, 30)):
                sent = np.full(chance.randrange(1, 200_000), number, "u1")
                asked = time.monotonic()
                assert (echo(sent) == sent).all()
                self.done["our calls"] += 1
                until = asked  # the session certainly lived then; this thread may see the reply late
            session.upload(__file__)
            if chance.random() < 0.3:
                session.get_function("fault.spawn")()
        finally:
            self.held.append(Held(board, since, until, "ours"))

    def _raw(self, address: tuple[str, int], key: str, seed: int) -> None:
        client, where = AbandoningClient(address, key, seed), random_step(random.Random(seed))
        while not self._stop.is_set():
            last = where()
            try:
                client.lease(last)
                self.done[last or "raw leases"] += 1
            except (OSError, EOFError):
                self.errors["raw"] += 1
                time.sleep(AGAIN_S)
        self.held += client.held


class TvmLoad:
    """Processes of TVM's unmodified client. One that loses its server may hang in native code: SIGALRM ends it."""

    def __init__(self, address: tuple[str, int], key: str, clients: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.live.load", str(address[1]), key, str(clients)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # TVM logs each lost connection
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            start_new_session=True,
        )
        reaper.note("+", self.process.pid)
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline()) == "begins"

    def stop(self) -> list[Held]:
        """Kill them; the intervals of their leases. A second call returns none."""
        if self.process.poll() is not None:
            return []
        os.killpg(self.process.pid, signal.SIGKILL)
        output, _ = self.process.communicate(timeout=END_S)
        reaper.note("-", self.process.pid)
        return [Held(*json.loads(line)) for line in output.splitlines() if line.endswith("]")]


def tvm_main(port: str, key: str, clients: str) -> None:
    """The main function of a `TvmLoad` process: its children print a line for each lease until they are killed."""
    import gc

    from tvm import rpc

    def work() -> None:
        tracker = rpc.connect_tracker("127.0.0.1", int(port))
        while True:
            signal.alarm(TVM_S)
            session = tracker.request(key, session_timeout=30)
            path = session.get_function("tvm.rpc.server.workpath")("x")
            since = time.monotonic()
            path = session.get_function("tvm.rpc.server.workpath")("x")
            row = (path.rpartition("/session-")[0], since, time.monotonic(), "tvm")
            print(json.dumps(row), flush=True)
            del session
            gc.collect()

    print(json.dumps("begins"), flush=True)
    running: set[int] = set()
    while True:
        while len(running) < int(clients):
            pid = os.fork()
            if pid == 0:
                try:
                    work()
                finally:
                    os._exit(1)
            running.add(pid)
        running.discard(os.wait()[0])
        time.sleep(AGAIN_S)


if __name__ == "__main__":
    tvm_main(*sys.argv[1:])
