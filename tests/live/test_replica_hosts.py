"""Three hosts with a tracker and a member of etcd each, under load: faults of all kinds, then eight rules are judged.

`RPCSYS_REPLICAS_SEED` chooses other faults than the usual ones, each time the same, except for their timing.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.daemons import Daemons, wait_until
from tests.live.networks import Networks
from tests.live.probe import PUT, REQUEST, TrackerProbe
from tests.live.replica_faults import Planned, plan
from tests.live.replica_history import Granted, Healed, History, Known, Table, Troubled
from tests.live.replica_hosts import SOON_S, Hosts
from tests.live.replica_peers import Load

SEED = int(os.environ.get("RPCSYS_REPLICAS_SEED", "77"))
KNOWN_S = 10.0  # in which a leader's file has what its clients were told

pytestmark = pytest.mark.open_lab("a closed lab has one tracker")


@pytest.fixture
def hosts(daemons: Daemons, tmp_path: Path) -> Iterator[Hosts]:
    """Three hosts that run, one of which leads."""
    with Networks() as networks:
        made = Hosts(networks, daemons, tmp_path)
        with made.running():
            yield made


@contextmanager
def load(hosts: Hosts, history: History) -> Iterator[Load]:
    """Servers and clients of both kinds, until the block ends."""
    made = Load(history, hosts.addresses, hosts.outside, hosts.all[0].links[0].hosts[0])
    made.start()
    try:
        yield made
    finally:
        made.stop()


def granted(history: History) -> Counter[str]:
    """How often each kind of client was granted something."""
    grants = [event for event in [*history.events] if isinstance(event, Granted)]
    return Counter(grant.request[:4] for grant in grants)


def goes_on(history: History, within_s: float) -> None:
    """Wait until both kinds of clients are granted something; the judge says whether that was in time."""
    before = granted(history)
    end = time.monotonic() + 2 * within_s
    while time.monotonic() < end and not all(granted(history)[kind] > before[kind] for kind in ("ours", "tvms")):
        time.sleep(0.05)


def note_known(hosts: Hosts, history: History) -> None:
    """Note what the leader knows, as soon as that is all that clients were told."""
    at = time.monotonic()
    told = history.told()
    leader = hosts.leader()
    end = at + KNOWN_S
    while not told <= (known := leader.known()) and time.monotonic() < end:
        time.sleep(0.2)
    history.add(Known(at, leader.term(), known))


def run(hosts: Hosts, history: History, faults: list[Planned]) -> None:
    """One fault after the other; the next one when it goes on."""
    for number, fault in enumerate(faults, 1):
        host = fault.choose(hosts)
        print(f"{number}: {fault.kind.name} at {host.name} for {fault.seconds:.1f} s", flush=True)
        history.add(Troubled(time.monotonic(), f"fault {number}, {fault.kind.name} at {host.name}", fault.kind.delays))
        fault.act(hosts, host)
        history.add(Healed(time.monotonic(), fault.kind.within_s))
        goes_on(history, fault.kind.within_s)
        note_known(hosts, history)


def survive(hosts: Hosts, faults: list[Planned]) -> Counter[str]:
    """Judge a lab that these faults befall; what was granted."""
    history = History()
    with load(hosts, history):
        goes_on(history, SOON_S)
        run(hosts, history, faults)
    note_known(hosts, history)
    try:
        wait_until(hosts.same_tables, SOON_S, "all replicas have the same history")
    finally:
        for host in hosts.all:
            history.add(Table(time.monotonic(), host.name, tuple(host.table()), host.servers()))
        (hosts.folder / "history.txt").write_text("\n".join(map(repr, history.events)))
        assert history.broken() == [], f"all events are in {hosts.folder}/history.txt"
    return granted(history)


@pytest.mark.timeout(240)
def test_ten_faults_break_no_rule(hosts: Hosts, record_property) -> None:
    print(f"RPCSYS_REPLICAS_SEED={SEED}")
    counts = survive(hosts, plan(SEED, 10, longest_s=4.0))
    record_property("grants", dict(counts))


@pytest.mark.slow
@pytest.mark.flaky(reruns=0)
@pytest.mark.timeout(600)
def test_thirty_faults_break_no_rule(hosts: Hosts, record_property) -> None:
    print(f"RPCSYS_REPLICAS_SEED={SEED}")
    counts = survive(hosts, plan(SEED + 1, 30, longest_s=10.0))
    record_property("grants", dict(counts))


@pytest.mark.release
@pytest.mark.flaky(reruns=0)
@pytest.mark.timeout(1200)
def test_a_hundred_faults_break_no_rule(hosts: Hosts, record_property) -> None:
    print(f"RPCSYS_REPLICAS_SEED={SEED}")
    counts = survive(hosts, plan(SEED, 100, longest_s=30.0))
    record_property("grants", dict(counts))


def test_a_paused_leader_does_not_answer_its_own_peers(hosts: Hosts) -> None:
    leader = hosts.leader()
    with hosts.outside.entered(), TrackerProbe(leader.address) as board, TrackerProbe(leader.address) as witness:
        assert board.ask([PUT, "witness", [9090, "witness:1"], None]) == 0
        os.kill(leader.tracker.pid, signal.SIGSTOP)
        witness.send([REQUEST, "witness", "", 1])  # it has a device for it
        wait_until(lambda: hosts.leading() not in (None, leader), SOON_S, "another tracker leads")
        os.kill(leader.tracker.pid, signal.SIGCONT)
        with pytest.raises((ConnectionError, EOFError)):
            witness.read(1)
    wait_until(lambda: "deposed" in leader.tracker.stderr(), SOON_S, "it knows that it is deposed")
    assert not leader.leads()
