"""Faults of hosts with replicas. Each lasts for a while, and heals: what it has stopped runs again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.live.networks import Detour
from tests.live.replica_hosts import Host, Hosts

DELAY_MS, LOSS_PERCENT = 200, 5.0
HOUR_S = 3600.0
AT_LEADER = 0.7  # of the faults
Fault = Callable[[Hosts, Host, random.Random, float], None]


@dataclass(frozen=True)
class Kind:
    """A kind of fault. ``delays``: messages may be late, as where a leader holds its answers until the engine writes.

    ``within_s``: of the first grant after it; ``longest_s``: how long it lasts at most; most of them are much shorter.
    """

    act: Fault
    delays: bool = False
    within_s: float = 15.0
    longest_s: float = 6.0

    @property
    def name(self) -> str:
        return self.act.__name__.strip("_")


@dataclass(frozen=True)
class Planned:
    """A fault of a run. ``seed``: of what it chooses itself."""

    kind: Kind
    at_leader: bool
    number: int  # of the host, where it is not the leader
    seconds: float
    seed: int

    def choose(self, hosts: Hosts) -> Host:
        """Where it is to be."""
        return (hosts.leading() if self.at_leader else None) or hosts.all[self.number]

    def act(self, hosts: Hosts, host: Host) -> None:
        """Begin it, and heal it after some seconds."""
        self.kind.act(hosts, host, random.Random(self.seed), self.seconds)


def plan(seed: int, count: int, longest_s: float) -> list[Planned]:
    """The faults of a run, every kind as often as all others."""
    chance = random.Random(seed)
    kinds: list[Kind] = []
    while len(kinds) < count:
        kinds += chance.sample(KINDS, len(KINDS))
    return [
        Planned(
            kind,
            chance.random() < AT_LEADER,
            chance.randrange(3),
            min(1.0 + chance.expovariate(0.5), longest_s, kind.longest_s),
            chance.randrange(1 << 30),
        )
        for kind in kinds[:count]
    ]


# --- of a tracker ------------------------------------------------------------------------------


def _kill(_hosts: Hosts, host: Host, _chance: random.Random, seconds: float) -> None:
    host.tracker.kill()
    time.sleep(seconds)
    host.start()


def _stop(_hosts: Hosts, host: Host, _chance: random.Random, seconds: float) -> None:
    assert host.tracker.terminate() == 0, host.tracker.stderr()[-2000:]
    time.sleep(seconds)
    host.start()


def _pause(_hosts: Hosts, host: Host, _chance: random.Random, seconds: float) -> None:
    os.kill(host.tracker.pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(host.tracker.pid, signal.SIGCONT)


def _clock(_hosts: Hosts, host: Host, chance: random.Random, seconds: float) -> None:
    """The time of day jumps to another hour, and stays there."""
    hours = [hour for hour in (-HOUR_S, 0.0, HOUR_S) if hour != float(host.clock.read_text())]
    changed = host.clock.with_suffix(".new")
    changed.write_text(str(chance.choice(hours)))
    changed.replace(host.clock)
    time.sleep(seconds)


# --- of the networks ---------------------------------------------------------------------------


def _cut(_hosts: Hosts, host: Host, _chance: random.Random, seconds: float) -> None:
    """The host is cut off from all."""
    with ExitStack() as healing:
        for link in host.links:
            link.cut()
            healing.callback(link.repair)
        time.sleep(seconds)


def _cut_from_the_engine(_hosts: Hosts, host: Host, _chance: random.Random, seconds: float) -> None:
    host.links[1].cut()
    try:
        time.sleep(seconds)
    finally:
        host.links[1].repair()


def _cut_one_way(_hosts: Hosts, host: Host, chance: random.Random, seconds: float) -> None:
    link, sender = chance.choice(host.links), chance.randrange(2)
    link.cut(sender)
    try:
        time.sleep(seconds)
    finally:
        link.repair(sender)


def _detour(delay_ms: int, loss: float, hosts: Hosts, host: Host, seconds: float) -> None:
    with ExitStack() as healing:
        for which, link in enumerate(host.links):
            beyond = [network + "/25" for network in hosts.networks_of(which)]
            healing.callback(Detour(link, ([link.hosts[1] + "/32"], beyond), delay_ms, loss).end)
        time.sleep(seconds)


def _slow(hosts: Hosts, host: Host, _chance: random.Random, seconds: float) -> None:
    """All packets to and from the host take 200 ms."""
    _detour(DELAY_MS, 0.0, hosts, host, seconds)


def _lossy(hosts: Hosts, host: Host, _chance: random.Random, seconds: float) -> None:
    """A twentieth of all packets to and from the host is lost."""
    _detour(0, LOSS_PERCENT, hosts, host, seconds)


# --- of the engine -----------------------------------------------------------------------------


def _kill_members(hosts: Hosts, killed: list[Host], seconds: float) -> None:
    for host in killed:
        host.member.kill()
    time.sleep(seconds)
    for host in killed:
        host.member.start()
    hosts.wait_engine()


def _kill_a_member(hosts: Hosts, host: Host, _chance: random.Random, seconds: float) -> None:
    _kill_members(hosts, [host], seconds)


def _kill_the_majority(hosts: Hosts, host: Host, _chance: random.Random, seconds: float) -> None:
    _kill_members(hosts, [other for other in hosts.all if other is not host], seconds)


def _fill(disk: Path) -> Path:
    """Take all that is left of a file system."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 20)):
                pass
        except OSError:
            pass  # it is full
    return filler


def _full_disks(hosts: Hosts, _host: Host, _chance: random.Random, seconds: float) -> None:
    """No member has space: each ends at its next write that needs some."""
    fillers = [_fill(host.disk) for host in hosts.all]
    try:
        time.sleep(seconds)
    finally:
        for filler in fillers:
            filler.unlink()
    for host in hosts.all:
        assert host.member.process is not None
        if host.member.process.poll() is not None:
            host.member.kill()
            host.member.start()
    hosts.wait_engine()


KINDS = (
    Kind(_kill),
    Kind(_stop),
    Kind(_pause, delays=True, longest_s=30.0),
    Kind(_clock),
    Kind(_cut, delays=True),
    Kind(_cut_from_the_engine, delays=True, longest_s=9.0),
    Kind(_cut_one_way, delays=True),
    Kind(_slow, delays=True),
    Kind(_lossy, delays=True),
    Kind(_kill_a_member, delays=True),
    Kind(_kill_the_majority, delays=True, within_s=20.0),
    Kind(_full_disks, delays=True, within_s=20.0),
)
