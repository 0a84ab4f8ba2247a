"""`rpcsys replicas setup` on an installed Debian: its units of etcd and of the tracker, started by systemd.

One machine is booted. What would be the two other hosts are units of it as well: copies, with the settings that the
same command writes for those hosts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import debian
from tests.live.booted import Booted
from tests.live.daemons import Daemons, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.open_lab("a closed lab has one tracker")]

HOSTS = ("127.9.0.1", "127.9.0.2", "127.9.0.3")
UNITS = Path("lib/systemd/system")
START_S = 60.0


@pytest.fixture
def machine(daemons: Daemons, shared: Path) -> Iterator[Booted]:
    """A machine with Debian's packages."""
    booted = Booted(daemons)
    booted.run("dpkg", "--install", *booted.copy(*debian.packages(shared)))
    yield booted
    daemons.stop()
    booted.close()


def set_up(machine: Booted, number: int) -> tuple[str, str]:
    """Set up one of the hosts; its units of etcd and of the tracker."""
    host, root = HOSTS[number], machine.root
    there = root if number == 0 else root / f"tmp/host{number}"
    settings, place = root / "etc/rpcsys/tracker.environment", there / "etc/rpcsys/tracker.environment"
    place.parent.mkdir(parents=True, exist_ok=True)
    (there / "etc/default").mkdir(exist_ok=True)
    own = settings.read_text().splitlines()
    flags = f"TRACKER_FLAGS=--host {host} --port 9190 --http-port 8190"  # all hosts are one machine
    place.write_text("\n".join(flags if line.startswith("TRACKER_FLAGS=") else line for line in own) + "\n")
    where = ("--root", f"/tmp/host{number}") if number else ()
    machine.run("rpcsys", "replicas", "setup", *HOSTS, "--this", host, "--yes", *where)
    if number == 0:
        return "etcd", "rpcsys-tracker"
    etcd, tracker = f"etcd-host{number}", f"rpcsys-tracker-host{number}"
    text = (there / "etc/default/etcd").read_text().replace("/var/lib/etcd/rpcsys", f"/var/lib/etcd/host{number}")
    (root / "etc/default" / etcd).write_text(text)  # by the name of its unit
    (root / "etc/rpcsys" / f"tracker-host{number}.environment").write_text(place.read_text())
    unit = (root / UNITS / "etcd.service").read_text().replace("Alias=etcd2.service\n", "")
    (root / UNITS / f"{etcd}.service").write_text(unit)
    unit = (root / UNITS / "rpcsys-tracker.service").read_text().replace("rpcsys-tracker", tracker)
    (root / UNITS / f"{tracker}.service").write_text(unit.replace("tracker.env", f"tracker-host{number}.env"))
    return etcd, tracker


def leader(machine: Booted, host: str, trackers: int) -> str | None:
    """Who leads so many trackers, as one of them says it; None while they are not so many."""
    try:
        said: dict[str, Any] = json.loads(machine.run("query_tracker", "replicas", "--json", "--host", host))
    except AssertionError:
        return None
    return said["leader"] if len(said["replicas"]) == trackers else None


def test_one_command_on_each_host_and_systemd_does_the_rest(machine: Booted) -> None:
    units = [set_up(machine, number) for number in range(3)]
    machine.run("systemctl", "daemon-reload")
    for names in units:
        machine.run("systemctl", "enable", *names)
    for names in units:
        machine.run("systemctl", "restart", "--no-block", *names)  # etcd is up when two of them are

    def leads(host: str, trackers: int) -> str:
        what = f"one of {trackers} trackers leads"
        found = wait_until(lambda: leader(machine, host, trackers), START_S, what, every_s=0.5)
        assert isinstance(found, str)
        return found.removesuffix(":9190")

    first = leads(HOSTS[1], 3)
    number = HOSTS.index(first)
    machine.run("systemctl", "stop", units[number][1])
    second = leads(HOSTS[number - 1], 2)
    assert second != first
    machine.cut_power()
    assert leads(HOSTS[0], 3) in HOSTS  # also the one that was stopped
    for etcd, tracker in units:
        assert machine.show(etcd, "ActiveState") == machine.show(tracker, "ActiveState") == "active"
        assert "Traceback" not in machine.journal(tracker)
