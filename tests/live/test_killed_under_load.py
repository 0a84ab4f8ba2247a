"""Each process of a lab is killed in turn while clients work: clear errors, recovery, and nothing left."""

from __future__ import annotations

import collections
import os
import random
import signal
import threading
import time

import numpy as np
import psutil
import pytest

import rpcsys
from rpcsys.errors import RpcsysError
from tests.live.daemons import START_S, Daemon, Daemons, alive, wait_free, wait_until

pytestmark = [pytest.mark.live, pytest.mark.slow]

KEY = "board"
SLOTS, CLIENTS = 3, 5
FLAGS = ("--slots", str(SLOTS), "--preload", "numpy", "--tvm", "off", "--import", "tests.live.hostile")
GONE_S = 15.0
#: Often enough for every kind of process to die in every state, and short enough for a test.
ROUNDS = 25
WORDS = ("tracker", "supervisor", "zygote", "child", "child", "child")


class Lab:
    """A tracker and a server that come back, at the same places, when they are killed."""

    def __init__(self, daemons: Daemons) -> None:
        self.daemons = daemons
        self.tracker = daemons.tracker()
        self.server = self._serve()

    def _serve(self) -> Daemon:
        return self.daemons.server(KEY, *FLAGS, "--tracker", self.tracker.where)

    def kill(self, what: str, chance: random.Random) -> None:
        """Kill one process of that kind, if there is one now."""
        zygotes = [child for child in self.server.children() if "zygote" in " ".join(child.cmdline())]
        if what == "tracker":
            self.tracker.kill()
            self.tracker = self.daemons.tracker(port=self.tracker.address[1])
        elif what == "supervisor":
            tree = self.server.tree()
            self.server.kill()
            wait_until(lambda: not any(map(alive, tree)), GONE_S, "all of the killed server is gone")
            wait_until(lambda: not self.folders(), GONE_S, "its folder is gone")
            self.server = self._serve()
        else:
            below = [child for zygote in zygotes for child in zygote.children()]
            victims = zygotes if what == "zygote" else below
            if victims:
                os.kill(chance.choice(victims).pid, signal.SIGKILL)

    def folders(self) -> list[str]:
        return [path.name for path in self.daemons.folder.glob("rpcsys-server-*")]


class Load:
    """Clients that lease, call, upload and leave children behind, until they are stopped."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self.errors: collections.Counter[str] = collections.Counter()
        self.calls = 0
        self._threads = [threading.Thread(target=self._work, args=(seed,)) for seed in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _work(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            try:
                with rpcsys.connect_tracker(self._address) as tracker:
                    while not self._stop.is_set():
                        with tracker.request(KEY, wait_timeout=20) as session:
                            self._use(session, chance)
            except RpcsysError as error:
                self.errors[type(error).__name__] += 1
                time.sleep(0.05)
            except Exception as error:  # what no user should ever see
                self.errors[f"unexpected: {error!r}"] += 1

    def _use(self, session: rpcsys.Session, chance: random.Random) -> None:
        echo = session.get_function("testing.echo")
        for _ in range(chance.randrange(1, 30)):
            sent = np.full(chance.randrange(1, 200_000), self.calls % 251, "u1")
            assert (echo(sent) == sent).all()
            self.calls += 1
        session.upload(__file__)
        if chance.random() < 0.3:
            session.get_function("hostile.spawn")()

    def stop(self) -> bool:
        """Whether all have ended in time."""
        self._stop.set()
        for thread in self._threads:
            thread.join(40)
        return not any(thread.is_alive() for thread in self._threads)


@pytest.fixture
def lab(daemons: Daemons) -> Lab:
    return Lab(daemons)


@pytest.mark.timeout(300)
def test_every_process_is_killed_in_turn_under_load(lab: Lab, record_property):
    chance = random.Random(5)
    load = Load(lab.tracker.where)
    try:
        for number in range(ROUNDS):
            time.sleep(chance.uniform(0.2, 1.5))
            try:
                lab.kill(WORDS[number % len(WORDS)], chance)
            except psutil.NoSuchProcess:
                pass  # it had ended by itself
    finally:
        ended = load.stop()
    assert ended
    assert load.calls > 100
    assert not [error for error in load.errors if error.startswith("unexpected")], load.errors
    record_property("calls and errors", f"{load.calls}, {dict(load.errors)}")
    wait_free(lab.tracker, KEY, SLOTS, START_S)
    wait_until(lambda: len(lab.server.tree()) == 2 + SLOTS, GONE_S, "supervisor, zygote, a child a slot")
    (folder,) = lab.folders()
    left = [path.name for path in (lab.daemons.folder / folder).iterdir()]
    assert all(name.startswith("ready-") for name in left), left  # made ahead for sessions to come
    assert "Traceback" not in lab.server.stderr()
