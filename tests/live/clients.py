"""Clients in processes of their own, driven line by line: what can be killed, stopped and starved.

``python -m tests.live.clients KIND HOST:PORT KEY LIBRARY [LIMIT_S]`` asks the tracker for a device,
says when it has one, then does what lines of JSON on its standard input tell it and answers each
with a line of JSON: functions of tests/live/hostile, ``put`` and ``get`` (a file of so many bytes), ``close``. KIND is
``rpcsys`` (our client, an rpcsys/1 session) or ``tvm`` (TVM's client).
:class:`Client` is the other end, for tests.
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
        """Call one of the functions of tests/live/hostile."""

    def close(self) -> None:
        """End the session in good order."""


class RpcsysWorker:
    def __init__(self, address: str, key: str, library: str, limit_s: float | None) -> None:
        import rpcsys

        self.session: Any = rpcsys.connect_tracker(address).request(key, session_timeout=limit_s)

    def call(self, name: str, *args: Any) -> Any:
        answer = self.session.get_function("hostile." + name)(*args)
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


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def contents(count: int) -> bytes:
    """So many bytes, none of them where another could be."""
    return random.Random(count).randbytes(count)


def put(worker: Worker, count: int) -> None:
    """Upload a file of ``count`` bytes."""
    worker.session.upload(bytearray(contents(count)), "contents")


def get(worker: Worker, count: int) -> bool:
    """Download what `put` has uploaded; whether it is right."""
    return bytes(worker.session.download("contents")) == contents(count)


OWN: dict[str, Callable[..., Any]] = {"close": lambda worker: worker.close(), "put": put, "get": get}


def obey(worker: Worker, line: str) -> bool:
    """Do what one line asks for and answer it. False when that was the last."""
    name, args = json.loads(line)
    started = time.monotonic()
    try:
        value = OWN[name](worker, *args) if name in OWN else worker.call(name, *args)
    except Exception as error:
        family = [kind.__name__ for kind in type(error).__mro__]
        say(error=family, message=str(error), took_s=time.monotonic() - started)
    else:
        say(value=value, took_s=time.monotonic() - started)
    return name != "close"


def main(kind: str, address: str, key: str, library: str, limit: str = "0") -> None:
    say(asking=os.getpid())
    try:
        worker: Worker = WORKERS[kind](address, key, library, float(limit) or None)
    except Exception as error:
        family = [kind.__name__ for kind in type(error).__mro__]
        say(error=family, message=str(error), took_s=0.0)
        return
    say(leased=worker.call("pid"), workdir=worker.call("workdir"))
    for line in sys.stdin:
        if not obey(worker, line):
            break


# --- in the test's process ---------------------------------------------------------------------


PIDS = ("pid", "spawn", "daemonise")  # functions that return a process number


class Client:
    """A client process, ``inside`` another network if it is given one's. ``session_pid`` and ``workdir`` are known once
    it has a device. Process numbers are those out here, not those of a session's PID namespace."""

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
        self.read()  # it is there; not yet whether it has connected

    def leased(self, deadline_s: float = LEASE_S) -> Client:
        """Wait until it has a device."""
        answer = self.read(deadline_s)
        assert "leased" in answer, answer
        self.workdir = answer["workdir"]
        self.session_pid = outside(answer["leased"], self.workdir)
        return self

    def silent(self) -> bool:
        """Whether it has said nothing since it was last read: it still waits."""
        return self._lines.empty()

    def send(self, name: str, *args: Any) -> None:
        """Start a call (or ``close``) there; ``read`` brings its answer."""
        self.process.stdin.write(json.dumps([name, args]) + "\n")

    def read(self, deadline_s: float = LEASE_S) -> dict[str, Any]:
        """The next thing it says."""
        try:
            line = self._lines.get(timeout=deadline_s)
        except queue.Empty:
            raise AssertionError(f"the client said nothing for {deadline_s:g} s") from None
        assert line, "the client's process ended"
        return json.loads(line)

    def call(self, name: str, *args: Any, deadline_s: float = LEASE_S) -> dict[str, Any]:
        """Call a function there and bring its answer: ``value``, or ``error`` and ``message``."""
        self.send(name, *args)
        answer = self.read(deadline_s)
        if name in PIDS and "value" in answer:
            answer["value"] = outside(answer["value"], self.workdir)
        return answer

    def close(self) -> None:
        """End its session in good order."""
        self.call("close")
        self.process.wait(STOP_S)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.process.kill()
        self.process.wait(STOP_S)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def destroy(self) -> None:
        """Whatever state it is in."""
        self.kill()
        reaper.note("-", self.process.pid)

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")


if __name__ == "__main__":
    main(*sys.argv[1:])
