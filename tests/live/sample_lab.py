"""A lab full of life, without a board: for the page's tests, and for pictures of the page.

python -m tests.live.sample_lab [PORT]      serve it at a port until Ctrl-C
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.speed import SpeedTest
from rpcsys.tracker.store import HistoryStore
from rpcsys.tracker.views.utilisation import STEP_S, STEPS
from tests.live.daemons import Daemon, Daemons, free_port, wait_until
from tests.live.probe import TrackerProbe

#: Keys, and for each of their boards its name and slots.
BOARDS: dict[str, list[tuple[str, int]]] = {
    "rpi4": [(f"shelf-{number}", 1) for number in range(1, 6)],
    "jetson-orin": [("orin-1", 2), ("orin-2", 2)],
    "pixel-8": [("phone-1", 1), ("phone-2", 1)],
    "x86-server": [("tower", 4)],
}
USERS = ("ann", "bo", "carol", "dmitri", "eun-ji", "farah")
#: By board: the users of sessions that run, since how many seconds, and their limits.
RUNNING: dict[str, list[tuple[str, int, float | None]]] = {
    "shelf-1": [("ann", 1260, 1800.0)], "shelf-2": [("carol", 310, 900.0)], "shelf-3": [("dmitri", 95, 600.0)],
    "shelf-4": [("ann", 2410, None)], "orin-1": [("eun-ji", 3905, 7200.0), ("bo", 730, None)],
    "phone-1": [("farah", 1550, 3600.0)], "tower": [("eun-ji", 200, 3600.0)],
}  # fmt: skip
#: Keys, users, for how many seconds they wait, and what they want.
WAITING: list[tuple[str, str, int, dict[str, Any]]] = [
    ("rpi4", "bo", 640, {}), ("rpi4", "eun-ji", 45, {"priority": 2}), ("rpi4", "farah", 380, {}),
    ("rpi4", "dmitri", 80, {}), ("rpi4", "carol", 300, {"labels": {"rack": "2"}}), ("rpi4", "bo", 21, {}),
    ("pixel-8", "ann", 130, {}),
]  # fmt: skip
SLOW, DRAINED, GONE = "shelf-4", "shelf-5", "phone-2"
HERE = "127.0.0.1"
CLEANED = {"processes": ["python3 (4711)", "sleep (4713)"], "removed": ["/tmp/model.onnx", "/dev/shm/sem.lab"]}
_VERSIONS = {"python": "3.11.2", "numpy": "1.26.4", "onnxruntime": "1.19.2", "libc": "2.36", "kernel": "6.6.31"}
_CANARY_S = 0.042
_RUN = "5a3e0c11"  # the tracker that ran before


class ProbedLab:
    """A tracker with a page and a history, and its raw servers and clients. ``state``: of an earlier tracker."""

    def __init__(self, daemons: Daemons, *flags: str, state: Path | None = None, port: int = 0) -> None:
        self.port = port or free_port()
        self.state = state or daemons.folder / "state"
        flags = ("--http-port", str(self.port), "--state-dir", str(self.state), *flags)
        self.tracker: Daemon = daemons.tracker(*flags)
        self.url = f"http://127.0.0.1:{self.port}/"
        self.probes: list[TrackerProbe] = []

    def hello(self, user: str) -> TrackerProbe:
        probe = TrackerProbe(self.tracker.address)
        self.probes.append(probe)
        assert probe.ask([1, {"op": "hello", "version": "0", "user": user}])["ok"]
        return probe

    def server(
        self,
        key: str,
        name: str,
        slots: int = 1,
        devices: Sequence[str] = (),
        running: Sequence[Any] = (),
        **labels: str,
    ) -> TrackerProbe:
        """A server that offers all its slots, but for sessions that are ``running`` there."""
        probe = self.hello("")
        asked = {"op": "register", "id": 1, "key": key, "name": name, "port": 9090, "slots": slots}
        assert probe.ask({**asked, "labels": labels, "devices": devices, "running": running})["ok"]
        for slot in range(slots - len(running)):
            assert probe.ask([3, key, [9090, f"{key}:{len(self.probes)}-{slot}"], None]) == 0
        return probe

    def request(self, user: str, key: str, **fields: Any) -> TrackerProbe:
        """A client that waits for a device; it has been told its place, or has a lease."""
        probe = self.hello(user)
        probe.send({"op": "request", "id": 1, "key": key, "wait_for_key": True, **fields})
        probe.receive()
        return probe

    def begin(self, server: TrackerProbe, count: int = 1) -> list[dict[str, Any]]:
        """Open the next ``count`` sessions that a server is told of; their leases and epochs."""
        taken = [server.receive() for _ in range(count)]
        leases = [{name: each[name] for name in ("lease", "epoch")} for each in taken]
        for each, lease in zip(taken, leases, strict=True):
            server.send({"id": each["id"], "ok": True})
            assert server.ask({"op": "lease_started", "id": 7, **lease, "peer": "127.0.0.1"})["ok"]
        return leases

    def end(self, server: TrackerProbe, lease: dict[str, Any], **more: Any) -> None:
        """End a lease as its server does."""
        assert server.ask({"op": "lease_ended", "id": 8, **lease, "outcome": "closed", **more})["ok"]

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        with urllib.request.urlopen(self.url + path, timeout=30) as reply:
            return json.load(reply)

    def close(self) -> None:
        for probe in self.probes:
            probe.close()


@contextmanager
def sample_lab(daemons: Daemons, *, port: int = 0) -> Iterator[ProbedLab]:
    """A lab with a past of a day: boards that are free, leased, drained, slow and gone; users that wait.

    The same at each start, but for the time.
    """
    state, now = daemons.folder / "sample", time.time()
    _past(state, now)
    lab = ProbedLab(daemons, state=state, port=port)
    try:
        _present(lab, now)
        yield lab
    finally:
        lab.close()


def _lease_of(since: float) -> dict[str, Any]:
    """The lease that was granted at a time, and its epoch."""
    return {"lease": f"{_RUN}-{int(1000 * since)}", "epoch": int(1000 * since)}


def _ticket_of(since: float) -> str:
    return f"{int(1000 * since)}@{_RUN}"


def _present(lab: ProbedLab, now: float) -> None:
    """Connect servers and clients; they have what they had ``now``, before the tracker started again."""
    servers: dict[str, TrackerProbe] = {}
    for key, boards in BOARDS.items():
        for number, (name, slots) in enumerate(boards):
            devices = ("cpu:0", "cuda:0") if key == "jetson-orin" else ("cpu:0",)
            facts = {"arch": "x86_64" if key == "x86-server" else "aarch64", "rack": str(1 + number % 3)}
            running = [{**_lease_of(now - ago), "since_s": float(ago)} for _, ago, _ in RUNNING.get(name, ())]
            servers[name] = lab.server(key, name, slots, devices, running, **facts, **_VERSIONS)
    servers[GONE].close()
    assert lab.hello("bo").ask({"op": "drain", "id": 1, "server": DRAINED})["ok"]
    for key, user, ago, fields in WAITING:
        lab.request(user, key, ticket=_ticket_of(now - ago), **fields)
    wait_until(lambda: not lab.get("api/lab")["settling"], 30, "all are back")


def _past(state: Path, now: float) -> None:
    """Write a history of the last day: leases, events of boards, levels, and what a canary has learnt."""
    chance = random.Random(4)
    store = HistoryStore(state, history_days=90, clock=lambda: now)
    places = [(key, name) for key, boards in BOARDS.items() for name, _ in boards]
    for key, name in places:
        store.note(
            HistoryEntry(now - 90_000, "joined", {"server": name, "key": key, "address": "10.0.0.8", "port": 9090})
        )
    began = now - 86_400
    for key, name in places:
        at = began + chance.uniform(0, 4000)
        while at < now - 4000:
            held = 60 + chance.lognormvariate(6.8, 0.8) * (1 + math.sin((at - began) / 86_400 * math.tau))
            at += 60 + held
            _lease(store, key, name, chance.choice(USERS), at - held, at, chance.random() < 0.06)
            at += chance.expovariate(1 / 1500)
    for name, kind, ago, details in (
        (DRAINED, "drained", 5400, {"by": "bo"}), (DRAINED, "enabled", 3000, {"by": "bo"}),
        ("orin-2", "unhealthy", 30_000, {"reason": "its health check failed: no answer of the camera"}),
        ("orin-2", "healthy", 26_000, {}), (SLOW, "slow", 7000, {"reason": slow_speed(now)[1]}),
        (GONE, "gone", 50_000, {"reason": "its connection ended"}), (GONE, "joined", 41_000, {"key": "pixel-8"}),
    ):  # fmt: skip
        store.note(HistoryEntry(now - ago, kind, {"server": name, **details}))
    for name in ("shelf-1", SLOW):
        text, reason = slow_speed(now) if name == SLOW else (_speed(now, slow=False).to_text(), "")
        details = {"server": name, "key": "rpi4", "test": text, "reason": reason, "over": False, "apart": False}
        store.note(HistoryEntry(now - 60, "canary", details))
    for key, boards in BOARDS.items():
        for name, _ in boards:
            for user, ago, limit_s in RUNNING.get(name, ()):
                _granted(store, key, name, user, now - ago, limit_s)
    for key, user, ago, fields in WAITING:
        ticket = _ticket_of(now - ago)
        details = {"ticket": ticket, "arrival": int(1000 * (now - ago)), "key": key, "user": user}
        about = {"labels": fields.get("labels", {}), "count": 1, "priority": fields.get("priority", 1)}
        store.note(HistoryEntry(now - ago, "waiting", {**details, **about, "address": HERE, "since": now - ago}))
    last = int(now) // STEP_S
    for step in range(last - STEPS + 1, last + 1):
        store.note_levels(_levels(step, chance))
    store.close()


def _granted(
    store: HistoryStore, key: str, server: str, user: str, since: float, limit_s: float | None
) -> dict[str, Any]:
    """Write the beginning of a lease; what its end has, too."""
    lease = _lease_of(since)
    about = {**lease, "key": key, "server": server, "user": user, "address": HERE}
    more = {"limit_s": limit_s, "waited_s": since % 120, "priority": 1.0, "arrival": lease["epoch"], "how": "ours"}
    begun = {"lease": lease["lease"], "peer": ""}
    store.note(HistoryEntry(since, "granted", {**about, **more}), HistoryEntry(since, "begun", begun))
    return about


def _lease(store: HistoryStore, key: str, server: str, user: str, since: float, ended: float, crashed: bool) -> None:
    about = _granted(store, key, server, user, since, 3600.0)
    outcome, reason = ("crashed", "its session's process died") if crashed else ("closed", "its client closed it")
    end = {"since": since, "held_s": ended - since, "outcome": outcome, "reason": reason, "fault": ""}
    store.note(HistoryEntry(ended, "over", {**about, **end, "cleaned": CLEANED if crashed else {}}))


def _levels(step: int, chance: random.Random) -> list[tuple[int, str, int, float, float, float]]:
    rows = []
    for key, boards in BOARDS.items():
        slots = sum(count for _, count in boards)
        wanted = slots * (0.75 + 0.45 * math.sin(step / STEPS * math.tau + len(key))) + chance.uniform(-0.4, 0.4)
        leased = min(slots, max(0.0, wanted))
        rows.append((step * STEP_S, key, 120, float(slots), leased, max(0.0, wanted - leased) * 1.5))
    return rows


def _speed(now: float, *, slow: bool) -> SpeedTest:
    """What a canary of every five minutes has learnt."""
    chance = random.Random(7)
    test = SpeedTest("builtin")
    runs = 40 * 8
    for number in range(runs):
        late = slow and number > runs - 24
        test.take(now - 300 * (runs - number), _CANARY_S * (1.18 if late else 1) * math.exp(chance.gauss(0, 0.008)))
    return test


def slow_speed(now: float) -> tuple[str, str]:
    """What a canary has learnt of a board that became slow: the speed test's text, and the reason."""
    test = _speed(now, slow=True)
    assert test.slow
    return test.to_text(), f"its canary takes 18.1% longer than its own {1000 * _CANARY_S:.3g} ms"


def main() -> None:
    """Serve it until Ctrl-C."""
    with tempfile.TemporaryDirectory() as folder:
        daemons = Daemons(Path(folder))
        try:
            with sample_lab(daemons, port=int(sys.argv[1]) if len(sys.argv) > 1 else 0) as lab:
                print(lab.url, flush=True)
                while True:
                    time.sleep(60)
        except KeyboardInterrupt:
            pass
        finally:
            daemons.stop()


if __name__ == "__main__":
    main()
