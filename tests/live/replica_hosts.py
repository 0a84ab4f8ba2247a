"""Three hosts as network namespaces, each with a tracker and a member of etcd.

They have two networks, with a router each: that of the lab, whose router is also where its servers and clients are,
and one for the engine. A host's links to them are its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rpcsys.tracker.batch import LEASES
from tests.etcd import Member
from tests.live.daemons import Daemon, Daemons, wait_until
from tests.live.networks import Link, Namespace, Networks
from tests.live.stored import rows

COUNT = 3
PORT, WEB, CLIENT, PEER = 9190, 8190, 2379, 2380
SOON_S = 60.0
DISK = "size=400M"  # of a member: etcd allocates two files of 64 MB ahead
TABLE = f"SELECT {', '.join(LEASES)} FROM leases ORDER BY epoch"  # the id is each file's own
SERVERS = """
SELECT server FROM leases
UNION ALL SELECT json_extract(details, '$.server') FROM present WHERE kind = 'granted'
"""
KNOWN = "SELECT lease FROM leases UNION SELECT about FROM present WHERE kind = 'granted'"
# The time of day is wrong by what a file says.
_TRACKER = """
import sys, time
right, place = time.time, sys.argv.pop(1)
time.time = lambda: right() + float(open(place).read())
from rpcsys.tracker import __main__
sys.exit(__main__.main())
"""


@dataclass
class Host:
    """A machine with a tracker and a member of etcd. ``links``: to the network of the lab, and to the engine's."""

    name: str
    namespace: Namespace
    links: tuple[Link, Link]
    folder: Path
    daemons: Daemons
    member: Member = field(init=False)
    tracker: Daemon = field(init=False)
    engine: str = ""  # where trackers find it

    @property
    def address(self) -> tuple[str, int]:
        """The tracker's, in the network of the lab."""
        return self.links[0].hosts[1], PORT

    @property
    def clock(self) -> Path:
        """The file that says how wrong its time of day is, in seconds."""
        return self.folder / "clock"

    @property
    def disk(self) -> Path:
        """Where the member's data is: a file system of its own."""
        return self.folder / "disk"

    def start(self) -> None:
        """Start the tracker, with the state that it has."""
        own = ("--host", "0.0.0.0", "--port", str(PORT), "--port-end", str(PORT + 1), "--http-port", str(WEB))
        more = ("--state-dir", str(self.folder / "state"), "--advertise", self.address[0], "--replicate", self.engine)
        command = (sys.executable, "-c", _TRACKER, str(self.clock), *own, *more)
        self.tracker = self.daemons.launch(f"tracker-{self.name}", self.namespace.inside(*command))
        self.tracker.await_ready_line()
        self.tracker.address = self.address

    def leads(self) -> bool:
        """Whether its tracker says that it leads, asked on the host itself."""
        with self.namespace.entered(), suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{WEB}/leader", timeout=2) as answer:
                return bool(answer.status == 200)
        return False

    def term(self) -> int:
        """The highest term that its tracker knows."""
        with (
            self.namespace.entered(),
            urllib.request.urlopen(f"http://127.0.0.1:{WEB}/api/replicas", timeout=5) as answer,
        ):
            return int(json.load(answer)["term"])

    def healthy(self) -> bool:
        """Whether its member answers for a majority."""
        with self.namespace.entered(), suppress(OSError, ValueError):
            with urllib.request.urlopen(f"http://127.0.0.1:{CLIENT}/health", timeout=2) as answer:
                return bool(json.load(answer)["health"] == "true")
        return False

    def table(self) -> list[tuple[object, ...]]:
        """The leases that are over, by its file."""
        return rows(self.folder / "state", TABLE)

    def servers(self) -> tuple[str, ...]:
        """Of each lease that is over or runs, the server, by its file. One that is there twice has another name."""
        return tuple(server.partition("-")[0] for (server,) in rows(self.folder / "state", SERVERS))

    def known(self) -> frozenset[str]:
        """The leases of which its file knows."""
        return frozenset(sys.intern(lease) for (lease,) in rows(self.folder / "state", KNOWN))


class Hosts:
    """The hosts, their networks, and who leads. ``outside``: the namespace of servers and clients."""

    def __init__(self, networks: Networks, daemons: Daemons, folder: Path) -> None:
        self.folder = folder
        self.outside, self.engine = networks.router("lab"), networks.router("engine")
        names = [f"host{number}" for number in range(1, COUNT + 1)]
        spaces = {name: networks.namespace(name) for name in names}
        lab = [networks.link(self.outside, space) for space in spaces.values()]
        engine = [networks.link(self.engine, space) for space in spaces.values()]
        self.all = [
            Host(name, spaces[name], (lab[number], engine[number]), folder / name, daemons)
            for number, name in enumerate(names)
        ]
        for host in self.all:
            self._route(host)
            self._make_member(host)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Of all trackers."""
        return tuple(host.address for host in self.all)

    def networks_of(self, which: int) -> list[str]:
        """The networks of all hosts' links to the lab (0) or to the engine (1)."""
        return [host.links[which].hosts[1].rpartition(".")[0] + ".0" for host in self.all]

    def _route(self, host: Host) -> None:
        for which, link in enumerate(host.links):
            for network in self.networks_of(which):
                if network != link.hosts[1].rpartition(".")[0] + ".0":
                    host.namespace.ip("route", "add", network + "/24", "via", link.hosts[0])

    def _make_member(self, host: Host) -> None:
        ways = {other.name: other.links[1].hosts[1] for other in self.all}
        host.engine = "etcd://" + ",".join(f"{way}:{CLIENT}" for way in ways.values()) + "/lab"
        client, peer = f"http://{ways[host.name]}:{CLIENT}", f"http://{ways[host.name]}:{PEER}"
        cluster = ",".join(f"{name}=http://{way}:{PEER}" for name, way in ways.items())
        flags = [
            *("--name", host.name, "--data-dir", str(host.disk / "data"), "--initial-cluster", cluster),
            *("--listen-client-urls", f"{client},http://127.0.0.1:{CLIENT}", "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--heartbeat-interval", "50", "--election-timeout", "500"),
            *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000"),
        ]
        host.member = Member(host.name, CLIENT, PEER, host.folder, flags, host.namespace.inside())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start all; end all, and unmount the members' disks. AssertionError: a tracker has not ended well."""
        try:
            for host in self.all:
                host.disk.mkdir(parents=True)
                host.clock.write_text("0")
                subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(host.disk)], check=True)
            for host in self.all:
                host.member.start()
            self.wait_engine()
            for host in self.all:
                host.start()
            self.leader()
            yield
            for host in self.all:
                assert host.tracker.terminate() == 0, host.tracker.stderr()[-2000:]
                assert "Traceback" not in host.tracker.stderr(), host.tracker.stderr()
        finally:
            for host in self.all:
                host.member.kill()
                subprocess.run(["umount", "-l", str(host.disk)], capture_output=True, check=False)

    def wait_engine(self) -> None:
        """Wait until all members answer for a majority."""
        for host in self.all:
            wait_until(host.healthy, SOON_S, f"etcd on {host.name} is healthy")

    def leading(self) -> Host | None:
        """Who says that it leads; None: nobody at the moment."""
        return next((host for host in self.all if host.leads()), None)

    def leader(self) -> Host:
        """Who leads, as soon as somebody does."""
        return wait_until(self.leading, SOON_S, "a tracker leads")

    def same_tables(self) -> bool:
        """Whether all replicas have the same leases that are over."""
        first, *others = [host.table() for host in self.all]
        return all(table == first for table in others)
