"""The units, the Debian packages and install.sh under a real systemd: process 1 of a machine that the test boots.

Tracker, proxy and gateway are installed from their Debian packages, the servers by ``install.sh``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rpcsys
from rpcsys import errors
from tests.live import debian, versions
from tests.live.booted import Booted
from tests.live.daemons import Daemons, wait_until
from tests.live.probe import TrackerProbe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TRACKER = ("127.0.0.1", 9190)
KEY, EDGE = "lab:rpi4", "edge"
SERVER, BEHIND = "rpcsys-server@lab-rpi4", "rpcsys-server@edge"
INSTALL = "/tmp/rpcsys-device/install.sh"
DAEMONS = ["rpcsys-tracker", "rpcsys-proxy", "rpcsys-gateway"]
START_S = 60.0
STOP_S = 90.0
WATCHDOG_S = 60.0  # the longest WatchdogSec


@pytest.fixture
def machine(daemons: Daemons) -> Iterator[Booted]:
    booted = Booted(daemons)
    yield booted
    daemons.stop()
    booted.close()


@pytest.fixture(scope="module")
def old(current_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return versions.unpacked(current_archive, tmp_path_factory.mktemp("old"))


@pytest.fixture
def lab(machine: Booted, shared: Path, old: Path) -> Booted:
    """The machine with tracker, proxy, gateway and two servers: one that clients connect to, one behind the proxy."""
    machine.run("dpkg", "--install", *machine.copy(*debian.packages(shared)))
    install(machine, old, "--key", KEY, "--host", "127.0.0.1", "--port", "9000", "--tracker", "127.0.0.1:9190")
    install(machine, old, "--key", EDGE, "--through-proxy", "--host", "127.0.0.1", "--port", "9090")
    for key in (KEY, EDGE):
        wait_free(machine, key)
    return machine


def copied(machine: Booted, top: Path) -> None:
    """Unpack a version in the machine's /tmp."""
    there = machine.root / "tmp" / "rpcsys-device"
    shutil.rmtree(there, ignore_errors=True)
    shutil.copytree(top, there, symlinks=True)


def install(machine: Booted, top: Path, *flags: str) -> str:
    copied(machine, top)
    return machine.run(INSTALL, *flags)


def free(machine: Booted, key: str) -> int:
    try:
        with machine.entered(), TrackerProbe(TRACKER) as probe:
            return probe.summary()["queue_info"].get(key, {"free": 0})["free"]
    except OSError:
        return 0  # no tracker yet


def wait_free(machine: Booted, key: str) -> None:
    wait_until(lambda: free(machine, key) == 1, START_S, f"{key} is free", every_s=0.2)


def lease(machine: Booted, key: str) -> rpcsys.Session:
    """A session in the machine's network."""
    with machine.entered():
        return rpcsys.connect_tracker(TRACKER).request(key, wait_timeout=START_S)


def works(session: rpcsys.Session) -> None:
    assert session.get_function("testing.echo")("there and back") == "there and back"


def version(machine: Booted, unit: str) -> str:
    """The version of the device runtime that the unit's process runs."""
    command = (machine.root / "proc" / str(machine.main_pid(unit)) / "cmdline").read_text()
    return command.partition("/opt/rpcsys/versions/")[2].partition("-")[0]


def traces(machine: Booted) -> set[str]:
    """Files and folders of rpcsys on the machine, without /var/tmp: other tests write there."""
    places = ("/etc", "/lib/", "/opt", "/run", "/usr", "/var/cache", "/var/lib", "/var/log", "/var/spool")
    found = machine.run("find", *places, "-xdev", "(", "-name", "*rpcsys*", "-o", "-path", "*/rpcsys/*", ")")
    return {name for name in found.splitlines() if not name.startswith("/var/log/journal/")}


def test_a_lab_serves_also_after_a_power_cut(lab: Booted) -> None:
    for unit in (*DAEMONS, SERVER, BEHIND):
        assert lab.run("systemctl", "is-enabled", unit).strip() == "enabled"
        assert lab.show(unit, "Type") == "notify"
        assert lab.show(unit, "ActiveState") == "active"  # READY=1 has arrived
    for unit in DAEMONS:
        status = (lab.root / "proc" / str(lab.main_pid(unit)) / "status").read_text()
        assert "\nUid:\t0\t" not in status
        assert "\nCapEff:\t0000000000000000\n" in status
    assert lab.run("rpcsys", "--version").endswith("(with speedups)\n")
    for key in (KEY, EDGE):
        with lease(lab, key) as session:
            works(session)
            assert session.info["capabilities"]["speedups"]
    wait_until(lambda: len(in_history(lab)) == 2, START_S, "leases are on disk", every_s=0.2)
    lab.cut_power()
    for key in (KEY, EDGE):
        wait_free(lab, key)
        with lease(lab, key) as session:
            works(session)
    wait_until(
        # The servers' clean-up decides which end is reported first.
        lambda: sorted(in_history(lab)) == sorted([KEY, EDGE] * 2),
        START_S,
        "the leases from before the cut, too",
        every_s=0.2,
    )


def in_history(machine: Booted) -> list[str]:
    """The keys of the leases in the history, oldest first."""
    history = machine.run("query_tracker", "history", "--json").splitlines()
    return [json.loads(line)["key"] for line in reversed(history)]


def test_a_stop_lets_sessions_end(lab: Booted) -> None:
    for unit, key in ((SERVER, KEY), (BEHIND, EDGE)):
        session = lease(lab, key)
        lab.run("systemctl", "stop", "--no-block", unit)
        wait_until(lambda unit=unit: lab.show(unit, "ActiveState") == "deactivating", START_S, "the stop begins")
        works(session)
        session.close()
        ended_well(lab, unit)
        assert free(lab, key) == 0
    for unit in DAEMONS:
        lab.run("systemctl", "stop", unit)
        ended_well(lab, unit)


def ended_well(machine: Booted, unit: str) -> None:
    machine.wait_for(unit, "ActiveState", "inactive", STOP_S)
    assert machine.show(unit, "Result") == "success"
    assert (machine.show(unit, "ExecMainCode"), machine.show(unit, "ExecMainStatus")) == ("1", "0")  # exit(0)
    assert machine.show(unit, "NRestarts") == "0"


def test_killed_daemons_restart_after_growing_pauses(lab: Booted) -> None:
    units = [*DAEMONS, SERVER]
    for kills in (1, 2, 3):
        killed_at = {}
        for unit in units:
            killed_at[unit] = time.monotonic()
            lab.signal("KILL", unit)
        for unit in units:
            lab.wait_for(unit, "NRestarts", str(kills), START_S)
            lab.wait_for(unit, "ActiveState", "active", START_S)
            started_at = int(lab.show(unit, "ExecMainStartTimestampMonotonic")) / 1e6
            assert started_at - killed_at[unit] > 2**kills - 0.1
    wait_free(lab, KEY)
    for unit in units:  # a restart by hand resets the counter
        lab.run("systemctl", "restart", unit)
        assert int(lab.run("wc", "-l", f"/run/{unit}/starts").split()[0]) == 1


def test_daemons_that_hang_are_restarted(lab: Booted) -> None:
    units = {unit: lab.main_pid(unit) for unit in (*DAEMONS, SERVER)}
    for unit in units:
        lab.signal("STOP", unit)
    for unit, before in units.items():
        lab.wait_for(unit, "NRestarts", "1", WATCHDOG_S + START_S)
        lab.wait_for(unit, "ActiveState", "active", START_S)
        assert lab.main_pid(unit) not in (0, before)
        assert "Watchdog timeout" in lab.journal(unit)
    for key in (KEY, EDGE):
        wait_free(lab, key)
        with lease(lab, key) as session:
            works(session)


def test_commands_work_with_debians_packages(lab: Booted) -> None:
    assert lab.fails("rpcsys", "fly") == "rpcsys: error: No such command 'fly' (see rpcsys --help)\n"
    assert "rpcsys tracker" in lab.run("rpcsys", "--help")
    assert KEY in lab.run("query_tracker", "--host", "127.0.0.1")
    lab.run("rpcsys", "drain", "booted:9000")
    assert free(lab, KEY) == 0
    lab.run("rpcsys", "enable", "booted:9000")
    wait_free(lab, KEY)


def test_a_wrong_flag_is_logged_once_without_restarts(lab: Booted) -> None:
    (lab.root / "etc/rpcsys/tracker.environment").write_text("TRACKER_FLAGS=--prot 9190\n")
    done = lab.fails("systemctl", "restart", "rpcsys-tracker")
    assert "journalctl" in done
    assert lab.show("rpcsys-tracker", "Result") == "exit-code"
    assert lab.show("rpcsys-tracker", "NRestarts") == "0"
    assert "rpcsys tracker: error: unrecognized arguments: --prot 9190" in lab.journal("rpcsys-tracker")


def test_install_sh_upgrades_drains_and_leaves_nothing(lab: Booted, old: Path, tmp_path: Path) -> None:
    settings = {file.name: file.read_text() for file in (lab.root / "etc/rpcsys").iterdir()}
    session = lease(lab, KEY)
    copied(lab, versions.successor(old, tmp_path))
    upgrade = subprocess.Popen(lab.command(INSTALL), stdout=subprocess.DEVNULL)
    wait_until(lambda: free(lab, EDGE) + free(lab, KEY) == 0, START_S, "no slot is offered", every_s=0.2)
    works(session)
    assert version(lab, SERVER) == rpcsys.__version__
    assert upgrade.poll() is None, "it waits for the session"
    session.close()
    assert upgrade.wait(START_S) == 0
    for unit, key in ((SERVER, KEY), (BEHIND, EDGE)):
        wait_free(lab, key)
        assert version(lab, unit) == versions.NEXT
        with lease(lab, key) as session:
            works(session)
    assert {file.name: file.read_text() for file in (lab.root / "etc/rpcsys").iterdir()} == settings

    lab.run("/opt/rpcsys/current/install.sh", "--uninstall")
    assert lab.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "rpcsys-server*") == ""
    lab.run("dpkg", "--purge", *DAEMONS, "rpcsys")
    assert lab.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "rpcsys*") == ""
    assert traces(lab) == set()


def test_a_power_cut_in_an_upgrade_leaves_a_board_that_serves(lab: Booted, old: Path, tmp_path: Path) -> None:
    session = lease(lab, KEY)
    copied(lab, versions.successor(old, tmp_path))
    upgrade = subprocess.Popen(lab.command(INSTALL), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: free(lab, EDGE) + free(lab, KEY) == 0, START_S, "no slot is offered", every_s=0.2)
    lab.cut_power()
    assert upgrade.wait(START_S) != 0
    with pytest.raises(errors.SessionLost):
        works(session)
    session.close()
    for unit, key in ((SERVER, KEY), (BEHIND, EDGE)):
        wait_free(lab, key)
        assert version(lab, unit) == versions.NEXT
        with lease(lab, key) as session:
            works(session)


def test_a_second_server_does_not_disturb_the_first(lab: Booted, old: Path) -> None:
    with lease(lab, KEY) as session:
        before = lab.main_pid(SERVER)
        install(lab, old, "--key", "third", "--host", "127.0.0.1", "--port", "0", "--tracker", "127.0.0.1:9190")
        wait_free(lab, "third")
        works(session)
        assert lab.main_pid(SERVER) == before
