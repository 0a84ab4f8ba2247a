"""Replicas as people set them up: by `rpcsys replicas setup` on three hosts, and by the compose file on one machine.

The commands, flags and variables are those that a service manager, or a container's, would take. Each test has a
network of its own: so it can have the ports that stand in these files.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rpcsys import data
from rpcsys.cli import environment_file, replicas
from tests.live.daemons import ROOT, Daemon, Daemons
from tests.live.networks import Networks
from tests.live.replicas import Replica, ReplicatedLab, load

pytestmark = pytest.mark.open_lab("a closed lab has one tracker")
HOSTS = ("127.9.0.1", "127.9.0.2", "127.9.0.3")
COMPOSE = yaml.safe_load((data.folder("packaging") / "compose.yaml").read_text("utf-8"))


@pytest.fixture(autouse=True)
def own_network() -> Iterator[None]:
    """This test, its threads and its daemons have a loopback of their own."""
    networks = Networks()
    with networks.namespace("setup").entered():
        yield
    networks.close()


class Started(Replica):
    """A tracker with a command line as somebody has written it."""

    def __init__(self, daemons: Daemons, command: Sequence[str]) -> None:
        self.daemons, self.command = daemons, command
        self.host, self.port, self.web = (self.flag(name) for name in ("--host", "--port", "--http-port"))
        self.state = Path(self.flag("--state-dir"))
        self.start()

    def flag(self, name: str) -> Any:
        value = self.command[self.command.index(name) + 1]
        return int(value) if value.isdigit() else value

    def start(self, *_: str) -> None:
        self.daemon = self.daemons.launch("tracker", (sys.executable, "-m", *self.command))
        self.daemon.await_ready_line()
        self.daemon.address = (self.host, self.port)


class StartedLab(ReplicatedLab):
    """Trackers that run, and a device server."""

    def __init__(self, daemons: Daemons, trackers: list[Replica]) -> None:
        self.daemons, self.replicas = daemons, trackers
        self.leads()
        self.serve()


def goes_on(lab: ReplicatedLab) -> None:
    """A leader is killed under load, and clients do not notice; it comes back, and all have one history."""
    with load(lab) as leased:
        leader = lab.leads()
        leader.daemon.kill()
        lab.leads_beside(leader)
        leased.wait_more()
        leader.start()
    lab.wait_free(2)
    lab.wait_same_history(len(leased.leases))
    lab.stop()


# --- three hosts -------------------------------------------------------------------------------


def set_up(root: Path, this: str, *hosts: str) -> str:
    """What the command says on a host whose files are below ``root``."""
    words = ("-m", "rpcsys", "replicas", "setup", *hosts, "--this", this, "--yes", "--root", str(root))
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def etcd(daemons: Daemons, root: Path) -> Daemon:
    """etcd as Debian's unit starts it: all that it knows is in its environment."""
    lines = (root / replicas.ETCD).read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    settings["ETCD_DATA_DIR"] = f"{root}{settings['ETCD_DATA_DIR']}"
    return daemons.launch("etcd", ("etcd",), env=settings)


def tracker(daemons: Daemons, root: Path) -> Started:
    """The tracker as its unit starts it."""
    unit = (data.folder("systemd") / "rpcsys-tracker.service").read_text()
    flags = environment_file.value((root / replicas.TRACKER).read_text(), "TRACKER_FLAGS")
    line = environment_file.value(unit, "ExecStart").replace("%S", f"{root}/var/lib").replace("$TRACKER_FLAGS", flags)
    return Started(daemons, shlex.split(line))


@pytest.mark.parametrize("engines", [0, 1])
def test_three_hosts_are_set_up_by_one_command_each(daemons: Daemons, tmp_path: Path, engines: int) -> None:
    """``engines``: how many of them have a member of etcd alone."""
    roots = {host: tmp_path / host for host in HOSTS}
    of_trackers = HOSTS[: len(HOSTS) - engines]
    named = (*of_trackers, *(word for host in HOSTS[len(of_trackers) :] for word in ("--engine", host)))
    for host, root in roots.items():  # each machine has other addresses; here, all are this machine's
        environment_file.write(root / replicas.TRACKER, f"TRACKER_FLAGS=--host {host} --port 9190 --http-port 8190\n")
        set_up(root, host, *named)
        assert set_up(root, host, *named).startswith("nothing changes")
        (root / "var/lib/etcd").mkdir(parents=True)
        etcd(daemons, root)
    goes_on(StartedLab(daemons, [tracker(daemons, roots[host]) for host in of_trackers]))


# --- one machine -------------------------------------------------------------------------------


def composed(name: str, folder: Path) -> tuple[list[str], Mapping[str, str]]:
    """The command of a service and its environment; what it mounts is in ``folder``."""
    service = COMPOSE["services"][name]
    assert service["network_mode"] == "host"
    (volume,) = service["volumes"]
    source, target = volume.split(":")
    assert source in COMPOSE["volumes"]
    assert sum(volume in each["volumes"] for each in COMPOSE["services"].values()) == 1
    (folder / source).mkdir()
    put = [str(each).replace(target, str(folder / source)) for each in service.get("environment", {}).values()]
    command = service.get("command", "").replace(target, str(folder / source))
    return shlex.split(command), dict(zip(service.get("environment", {}), put, strict=True))


def test_the_compose_files_trackers_take_over_from_each_other(daemons: Daemons, tmp_path: Path) -> None:
    trackers = []
    for name in COMPOSE["services"]:
        command, environment = composed(name, tmp_path)
        if name.startswith("etcd"):
            assert command == []  # the image's own
            daemons.launch("etcd", ("etcd",), env=environment)
        else:
            trackers.append(command)
    assert len(trackers) == 3
    goes_on(StartedLab(daemons, [Started(daemons, ["rpcsys", *command]) for command in trackers]))


@pytest.mark.parametrize(
    ("service", "what"),
    [
        ("x-tracker", ('ENTRYPOINT ["rpcsys"]', "VOLUME /var/lib/rpcsys")),
        ("x-etcd", ('ENTRYPOINT ["etcd"]', "VOLUME /var/lib/etcd")),
    ],
)
def test_the_compose_files_images_are_those_of_the_containerfiles(service: str, what: tuple[str, ...]) -> None:
    build = COMPOSE[service]["build"]
    folder = (data.folder("packaging") / build["context"]).resolve()
    containerfile = (folder / build["dockerfile"]).read_text()
    assert all(line in containerfile.splitlines() for line in what)
