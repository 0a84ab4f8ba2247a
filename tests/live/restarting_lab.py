"""A lab that restarts its daemons at the same addresses when they are killed, and threads that repeat faults."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.live.daemons import START_S, Daemon, Daemons, alive, wait_free, wait_until

KEY, TVM_KEY = "board", "tvm"
COMMON = ("--import", "tests.live.session_faults", "--grace", "1")
GONE_S = 30.0
#: Below the ephemeral ports: no other process takes the port of a daemon that restarts.
PORTS = (20_000, 32_000)


#: Three servers: one with two slots, one behind the proxy, one for TVM's clients.
BOARDS = {
    "direct": ("--key", KEY, "--slots", "2", "--preload", "numpy", "--tvm", "off", *COMMON),
    "proxied": ("--key", KEY, "--preload", "numpy", "--tvm", "off", "--through-proxy", *COMMON),
    "tvms": ("--key", TVM_KEY, "--preload", "none", *COMMON),
}
SLOTS = {"direct": 2, "proxied": 1, "tvms": 1}


class Lab:
    """Tracker, proxy and `BOARDS`. ``current``: the running daemons by name."""

    def __init__(self, daemons: Daemons, chance: random.Random, state: Path) -> None:
        self.daemons = daemons
        self.ports = {name: _port(chance) for name in ("tracker", "proxy", "direct", "tvms")}
        self._state = state
        self.current: dict[str, Daemon] = {}
        for name in ("tracker", "proxy", *BOARDS):
            self.start(name)
        self.all_free()

    @property
    def tracker(self) -> Daemon:
        return self.current["tracker"]

    def start(self, name: str) -> None:
        """Start a daemon at its fixed port."""
        tracker = ("--tracker", f"127.0.0.1:{self.ports['tracker']}")
        if name == "tracker":
            daemon = self.daemons.tracker("--state-dir", str(self._state), port=self.ports[name])
        elif name == "proxy":
            daemon = self.daemons.proxy(*tracker, "--grace", "1", port=self.ports[name])
        else:
            flags = (*BOARDS[name], "--name", name)
            flavour = "ctypes" if name == "tvms" else "ours"
            if name == "proxied":
                daemon = self.daemons.reach(name, flavour, *flags, port=self.ports["proxy"])
            else:
                daemon = self.daemons.reach(name, flavour, *flags, *tracker, port=self.ports[name])
        self.current[name] = daemon

    def kill(self, name: str) -> None:
        """SIGKILL to a daemon; it starts again when all its descendants have ended."""
        daemon = self.current[name]
        if name in SLOTS:
            wait_until(lambda: len(daemon.tree()) >= 2 + SLOTS[name], GONE_S, f"{name} is whole")
        tree, folders = daemon.tree(), self.folders(daemon)
        daemon.kill()
        wait_until(lambda: not any(map(alive, tree)), GONE_S, f"all of the killed {name} is gone")
        self.start(name)
        if name in SLOTS:
            wait_until(
                lambda: not any(map(os.path.exists, folders)), GONE_S, f"{folders} of the killed {name} are gone"
            )

    def kill_below(self, name: str, chance: random.Random, generation: int) -> None:
        """SIGKILL to a server's zygote (generation 1) or to one of its children (2)."""
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it has ended by itself
            found = self.current[name].children()
            for _ in range(generation - 1):
                found = [child for one in found for child in one.children()]
            if found:
                os.kill(chance.choice(found).pid, signal.SIGKILL)

    def folders(self, daemon: Daemon) -> list[Path]:
        """The temporary folders of a server."""
        return [*self.daemons.folder.glob(f"rpcsys-server-{daemon.pid}-*")]

    def all_free(self) -> None:
        """Wait until every slot is offered."""
        wait_free(self.tracker, KEY, SLOTS["direct"] + SLOTS["proxied"], START_S)
        wait_free(self.tracker, TVM_KEY, SLOTS["tvms"], START_S)


class FaultThreads:
    """Threads that each repeat one fault at random times; `join` raises the first problem."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._threads: list[threading.Thread] = []
        self.problems: list[BaseException] = []
        self.stopping = threading.Event()

    def add(self, act: Callable[[random.Random], None], times: int, pause_s: tuple[float, float]) -> None:
        """Start a thread that calls ``act`` ``times`` times, each after a random pause in ``pause_s``."""
        chance = random.Random(f"{self._seed}-{len(self._threads)}")

        def work() -> None:
            try:
                for _ in range(times):
                    if self.stopping.wait(chance.uniform(*pause_s)):
                        return
                    act(chance)
            except BaseException as problem:
                self.problems.append(problem)
                self.stopping.set()

        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def join(self, within_s: float) -> None:
        """Wait until all threads have ended. Raises the first problem of a thread."""
        for thread in self._threads:
            thread.join(within_s)
        self.stopping.set()
        for problem in self.problems:
            raise problem
        assert not any(thread.is_alive() for thread in self._threads)


def _port(chance: random.Random) -> int:
    while True:
        port = chance.randrange(*PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
