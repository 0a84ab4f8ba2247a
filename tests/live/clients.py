"""Client processes that tests control by lines of JSON; a test can kill or stop them.

``python -m tests.live.clients KIND HOST:PORT KEY LIBRARY [LIMIT_S]`` leases a device, prints a line when it has
one, then runs each line of JSON from its standard input and prints the result as a line of JSON. A line names a
function of tests/live/session_faults, ``put`` or ``get`` (a file of so many bytes), or ``close``. KIND is ``rpcsys``
(our client, an rpcsys/1 session) or ``tvm`` (TVM's client). :class:`Client` is the end for tests.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tests.live.daemons import ROOT, STOP_S, Daemon, outside, reaper

LEASE_S = 40.0


# --- in the client's process -------------------------------------------------------------------


class Worker(Protocol):
    """One leased device."""

    session: Any

    def call(self, name: str, *args: Any) -> Any:
        """Call a function of tests/live/session_faults."""

    def close(self) -> None:
        """Close the session."""


class RpcsysWorker:
    def __init__(self, address: str, key: str, library: str, limit_s: float | None) -> None:
        import rpcsys

        self.session: Any = rpcsys.connect_tracker(address).request(key, session_timeout=limit_s)

    def call(self, name: str, *args: Any) -> Any:
        answer = self.session.get_function("fault." + name)(*args)
        return len(answer) if isinstance(answer, (bytes, bytearray, memoryview)) else answer

    def close(self) -> None:
        self.session.close()


class TvmWorker:
    def __init__(self, address: str, key: str, library: str, limit_s: float | None) -> None:
        from tvm import rpc

        host, port = address.split(":")
        tracker = rpc.connect_tracker(host, int(port))
        self.session: Any = tracker.request(key, session_timeout=limit_s or 0)
        self.session.upload(library)
        self.module: Any = self.session.load_module(os.path.basename(library))

    def call(self, name: str, *args: Any) -> Any:
        if name == "workdir":
            return os.path.dirname(self.session.get_function("tvm.rpc.server.workpath")("x"))
        return self.module[name](*args)

    def close(self) -> None:
        self.module = self.session = None  # TVM ends a session with its last reference


WORKERS = {"rpcsys": RpcsysWorker, "tvm": TvmWorker}


def report(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def contents(count: int) -> bytes:
    """``count`` pseudo-random bytes: a byte at a wrong place is found."""
    return random.Random(count).randbytes(count)


def put(worker: Worker, count: int) -> None:
    """Upload a file of ``count`` bytes."""
    worker.session.upload(bytearray(contents(count)), "contents")


def get(worker: Worker, count: int) -> bool:
    """Download what `put` has uploaded; whether the bytes are the same."""
    return bytes(worker.session.download("contents")) == contents(count)


OWN: dict[str, Callable[..., Any]] = {"close": lambda worker: worker.close(), "put": put, "get": get}


def execute(worker: Worker, line: str) -> bool:
    """Run one line and report its result. False after ``close``."""
    name, args = json.loads(line)
    started = time.monotonic()
    try:
        value = OWN[name](worker, *args) if name in OWN else worker.call(name, *args)
    except Exception as error:
        family = [kind.__name__ for kind in type(error).__mro__]
        report(error=family, message=str(error), took_s=time.monotonic() - started)
    else:
        report(value=value, took_s=time.monotonic() - started)
    return name != "close"


def main(kind: str, address: str, key: str, library: str, limit: str = "0") -> None:
    report(asking=os.getpid())
    try:
        worker: Worker = WORKERS[kind](address, key, library, float(limit) or None)
    except Exception as error:
        family = [kind.__name__ for kind in type(error).__mro__]
        report(error=family, message=str(error), took_s=0.0)
        return
    report(leased=worker.call("pid"), workdir=worker.call("workdir"))
    for line in sys.stdin:
        if not execute(worker, line):
            break


# --- in the test's process ---------------------------------------------------------------------


PIDS = ("pid", "spawn", "daemonise")  # functions that return a pid


class Client:
    """A client process, in another network if ``inside`` is given. ``session_pid`` and ``workdir`` are set after the
    lease. Pids are those of this PID namespace, not of the session's."""

    def __init__(
        self,
        kind: str,
        tracker: Daemon,
        key: str,
        library: object,
        limit_s: float = 0,
        inside: Callable[..., Sequence[str]] = lambda *command: command,
    ) -> None:
        command = inside(sys.executable, "-m", "tests.live.clients", kind, tracker.where, key)
        self.process = subprocess.Popen(
            [*command, str(library), str(limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        reaper.note("+", self.process.pid)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.session_pid = 0
        self.workdir = ""
        self.read()  # the process has started; it may not have connected yet

    def leased(self, deadline_s: float = LEASE_S) -> Client:
        """Wait until it has a device."""
        answer = self.read(deadline_s)
        assert "leased" in answer, answer
        self.workdir = answer["workdir"]
        self.session_pid = outside(answer["leased"], self.workdir)
        return self

    def silent(self) -> bool:
        """Whether it has reported nothing since the last `read`: it still waits."""
        return self._lines.empty()

    def send(self, name: str, *args: Any) -> None:
        """Start a call (or ``close``) there; `read` returns its result."""
        self.process.stdin.write(json.dumps([name, args]) + "\n")

    def read(self, deadline_s: float = LEASE_S) -> dict[str, Any]:
        """The next line that it reports."""
        try:
            line = self._lines.get(timeout=deadline_s)
        except queue.Empty:
            raise AssertionError(f"the client said nothing for {deadline_s:g} s") from None
        assert line, "the client's process ended"
        return json.loads(line)

    def call(self, name: str, *args: Any, deadline_s: float = LEASE_S) -> dict[str, Any]:
        """Call a function there; the result has ``value``, or ``error`` and ``message``."""
        self.send(name, *args)
        answer = self.read(deadline_s)
        if name in PIDS and "value" in answer:
            answer["value"] = outside(answer["value"], self.workdir)
        return answer

    def close(self) -> None:
        """Close its session and wait for its end."""
        self.call("close")
        self.process.wait(STOP_S)

    def kill(self) -> None:
        """SIGKILL, and wait until the process has ended."""
        self.process.kill()
        self.process.wait(STOP_S)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def destroy(self) -> None:
        """Kill it in any state; the reaper forgets it."""
        self.kill()
        reaper.note("-", self.process.pid)

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")


if __name__ == "__main__":
    main(*sys.argv[1:])
