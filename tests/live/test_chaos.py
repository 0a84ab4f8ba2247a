"""All faults at once: kills, stops, a full disk, floods and false messages, beside correct clients of two labs.

The daemons of one lab are killed again and again. The clients of the other lab see no error, and its daemons free their
memory. ``RPCSYS_CHAOS_S`` sets the duration in seconds; ``RPCSYS_CHAOS_SEED`` repeats a run, except for its timing.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import rpcsys
from tests.live import fault_injection
from tests.live.daemons import START_S, Daemon, Daemons, rss_mb, wait_free, wait_until
from tests.live.intervals import too_many
from tests.live.load import Load, TvmLoad
from tests.live.restarting_lab import BOARDS, COMMON, KEY, TVM_KEY, FaultThreads, Lab

SECONDS = float(os.environ.get("RPCSYS_CHAOS_S", "90"))
SEED = int(os.environ.get("RPCSYS_CHAOS_SEED", "0")) or random.randrange(1, 10**6)
WARM_PART, WARM_S = (0.3, 60.0)  # caches and allocators grow in a first part that is not measured
GROWTH_MB = 5.0  # SQLite needs 2 of them for pages of a longer history
END_S = 120.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.flaky(reruns=0),  # three of them would take an hour
    pytest.mark.timeout(SECONDS + 900),
]
Act = Callable[[random.Random], None]


class Steady:
    """Daemons that are not killed: a tracker on a small disk, a proxy, a server of two slots, one behind the proxy."""

    def __init__(self, daemons: Daemons, disk: Path) -> None:
        self.disk = disk
        self.tracker = daemons.tracker("--state-dir", str(disk / "state"))
        self.proxy = daemons.proxy("--tracker", self.tracker.where)
        flags = ("--preload", "numpy", *COMMON)
        self.server = daemons.server(KEY, "--slots", "2", *flags, flavour="ctypes", tracker=self.tracker, offers=2)
        self.behind = daemons.behind(self.proxy, KEY, *flags, flavour="ctypes")
        self.behind.await_ready_line()
        self.all = (self.tracker, self.proxy, self.server, self.behind)
        self.all_free()

    def all_free(self) -> None:
        try:
            wait_free(self.tracker, KEY, 3, START_S)
        except AssertionError:
            with rpcsys.connect_tracker(self.tracker.where) as viewer:
                print(viewer.summary())
            raise

    def memory(self) -> dict[str, float]:
        """Resident memory in MB of each daemon and zygote."""
        zygotes = [child for server in (self.server, self.behind) for child in server.children()]
        sizes = {f"{daemon.name} {daemon.pid}": rss_mb([daemon.pid]) for daemon in self.all}
        return {**sizes, **{f"zygote {zygote.pid}": rss_mb([zygote.pid]) for zygote in zygotes}}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB; without the right to mount, a folder that no test fills."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24M", "tmpfs", str(folder)]
    mounted = not subprocess.run(command, capture_output=True).returncode
    yield folder
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def lab(daemons: Daemons, tmp_path: Path) -> Lab:
    return Lab(daemons, random.Random(), tmp_path / "state")


@pytest.fixture
def steady(disk: Path, daemons: Daemons) -> Steady:
    return Steady(daemons, disk)


def chaos(lab: Lab, steady: Steady, seconds: float, seed: int) -> tuple[Load, Load, int]:
    """Run all faults for ``seconds``; the loads of the killed and of the steady lab, and the leases of TVM's client."""
    killed, good = Load(), Load()
    tvms = [TvmLoad(one.address, key, 1) for one, key in ((lab.tracker, TVM_KEY), (steady.tracker, KEY))]
    faults = FaultThreads(seed)
    try:
        killed.ours(lab.tracker.where, KEY, 2)
        killed.raw(lab.tracker.address, KEY, 2)
        good.ours(steady.tracker.where, KEY, 2)
        good.raw(steady.tracker.address, KEY, 2)
        for act, pause_s in faults_of(lab, steady):
            faults.add(act, 10**9, (0, pause_s))
        faults.stopping.wait(seconds)
        faults.stopping.set()
        faults.join(END_S)
    finally:
        faults.stopping.set()
        held = [tvm.stop() for tvm in tvms]
        killed.stop()
        good.stop()
    return killed, good, len(held[1])


def faults_of(lab: Lab, steady: Steady) -> list[tuple[Act, float]]:
    """The faults, each for its own thread, with the longest pause in seconds."""
    of_steady = [daemon.address for daemon in steady.all if daemon.address]

    def any_daemon(chance: random.Random) -> Daemon:
        return chance.choice([*lab.current.values(), *steady.all])

    def below(chance: random.Random) -> None:
        lab.kill_below(chance.choice([*BOARDS]), chance, chance.choice((1, 2)))

    def bad_peer(chance: random.Random) -> None:
        act = chance.choice((fault_injection.flood, fault_injection.garbage, fault_injection.half_open))
        act(chance, chance.choice(of_steady))

    def false_peer(chance: random.Random) -> None:
        if chance.random() < 0.5:
            fault_injection.false_client(chance, steady.tracker.address)
        else:
            fault_injection.false_server(chance, steady.tracker.address, "false")

    acts: list[tuple[Act, float]] = [
        (lambda chance: lab.kill(chance.choice([*lab.current])), 6.0),
        (below, 4.0),
        (bad_peer, 1.0),
        (false_peer, 2.0),
        (lambda chance: fault_injection.break_window(chance, steady.tracker.address, KEY), 4.0),
        (lambda chance: fault_injection.stop_for_a_while(chance, any_daemon(chance)), 4.0),
    ]
    if os.path.ismount(steady.disk):
        acts.append((lambda chance: fault_injection.fill(chance, steady.disk), 10.0))
    return acts


def test_correct_clients_see_no_error_and_nothing_is_left(lab: Lab, steady: Steady, record_property):
    print(f"RPCSYS_CHAOS_S={SECONDS:g} RPCSYS_CHAOS_SEED={SEED}")
    chaos(lab, steady, min(WARM_S, WARM_PART * SECONDS), -SEED)
    steady.all_free()
    before = steady.memory()
    killed, good, tvms = chaos(lab, steady, SECONDS, SEED)
    steady.all_free()
    lab.all_free()
    record_property("killed lab", f"{dict(killed.done)}; {dict(killed.errors)}")
    record_property("steady lab", f"{dict(good.done)}; {dict(good.errors)}; {tvms} of TVM's")
    assert all(daemon.running() for daemon in steady.all)
    assert good.done["our calls"] > SECONDS
    assert tvms
    assert not [name for name in good.errors if name != "raw"], good.errors
    assert not too_many(good.held, dict.fromkeys({one.board for one in good.held}, 2))
    assert not [daemon.name for daemon in steady.all if "Traceback" in daemon.stderr()]

    def grown() -> dict[str, float]:
        after = steady.memory()
        return {name: after[name] - size for name, size in before.items() if name in after}

    with suppress(AssertionError):  # the allocator returns freed memory later
        wait_until(lambda: max(grown().values()) < GROWTH_MB, START_S, "memory is back", 1.0)
    record_property("grown by, MB", {name: round(size, 1) for name, size in grown().items()})
    assert max(grown().values()) < GROWTH_MB, grown()
