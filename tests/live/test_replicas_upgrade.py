"""From one tracker of an earlier version to three replicas of this one, and a new version on these, under load.

The ends of the earlier version and TVM's know one address. No client has an error, but for one: a client of the earlier
version that connects when nothing listens at its one address, or while the listener closes, or whose request is under
way as its tracker stops, is told so, and asks again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

import rpcsys
from tests import etcd
from tests.live.daemons import ROOT, Daemon, Daemons, free_port, wait_until
from tests.live.replicas import KEY, SOON_S, Replica, ReplicatedLab, load
from tests.live.stored import rows

pytestmark = [pytest.mark.open_lab("a closed lab has one tracker"), pytest.mark.slow, pytest.mark.timeout(600)]

#: The last commit whose trackers have no replicas. No version before them is published.
EARLIER = "ccb5e48f7045f748ddc3ba90835e18c60da892d1"
TVMS_KEY = "tvms"

# One lease after another, and its name on a line, until the file is there. It ends with the first other error.
LEASES = """
import os, sys, time
import rpcsys
from rpcsys.errors import TrackerLost, TrackerUnreachable
where, key, over = sys.argv[1:]
with rpcsys.connect_tracker(where, user="earlier") as tracker:
    while not os.path.exists(over):
        try:
            session = tracker.request(key, session_timeout=60, wait_timeout=120)
        except TrackerUnreachable as error:
            assert "(Connection refused)" in str(error) or "(Connection reset by peer)" in str(error), error
            time.sleep(0.1)
            continue
        except TrackerLost:
            continue
        with session:
            session.ping(30)
            print(session.lease["lease"], flush=True)
"""
# One lease, kept until the file is there.
HOLDS = """
import os, sys, time
import rpcsys
where, key, over = sys.argv[1:]
with rpcsys.connect_tracker(where, user="earlier") as tracker:
    with tracker.request(key, session_timeout=600, wait_timeout=300) as session:
        print(session.lease["lease"], flush=True)
        while not os.path.exists(over):
            time.sleep(0.1)
        session.ping(30)
"""
TVMS = """
import os, sys
from tvm import rpc
where, key, over = sys.argv[1:]
host, port = where.split(":")
tracker = rpc.connect_tracker(host, int(port))
while not os.path.exists(over):
    remote = tracker.request(key, session_timeout=60)
    remote.upload(bytearray(b"of TVM"), "file")
    assert remote.download("file") == b"of TVM"
    del remote
    print("served", flush=True)
tracker.close()
"""


class Client:
    """A program that prints a line for each lease."""

    def __init__(self, daemons: Daemons, program: str, where: str, key: str, tree: Path = ROOT) -> None:
        self.over = daemons.folder / f"over{len(daemons.started)}"
        command = (sys.executable, "-c", program, where, key, str(self.over))
        self.daemon = daemons.launch("client", command, env={"PYTHONPATH": str(tree)})

    def lines(self) -> list[str]:
        return self.daemon.stdout_path.read_text().splitlines()

    def wait_more(self, count: int = 2) -> None:
        """Wait until it has so many more leases."""
        least = len(self.lines()) + count

        def served() -> bool:
            assert self.daemon.process.poll() in (None, 0), self.daemon.stderr()
            return len(self.lines()) >= least

        wait_until(served, SOON_S, f"{count} more leases")

    def end(self) -> list[str]:
        """Tell it to end; its lines."""
        self.over.touch()
        assert self.daemon.process.wait(SOON_S) == 0, self.daemon.stderr()
        return self.lines()


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the earlier version."""
    folder = tmp_path_factory.mktemp("earlier")
    done = subprocess.run(["git", "archive", EARLIER, "rpcsys"], cwd=ROOT, capture_output=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"needs the repository's history: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture
def engine() -> Iterator[etcd.Etcd]:
    with etcd.running(3) as made:
        yield made


class UpgradedLab(ReplicatedLab):
    """A tracker of an earlier version, with a device server and clients of it; then replicas in its place."""

    def __init__(self, daemons: Daemons, engine: etcd.Etcd, folder: Path, tree: Path) -> None:
        self.daemons, self.engine, self.folder, self.snapshot = daemons, engine, folder, None
        self.replicas = []
        self.port = free_port()
        self.state, self.environment = folder / "state0", {"PYTHONPATH": str(tree)}
        self.single = daemons.tracker("--state-dir", str(self.state), port=self.port, env=self.environment)
        assert "--replicate" not in self._help()
        self.where = self.single.where

    def _help(self) -> str:
        command = [sys.executable, "-m", "rpcsys.tracker", "--help"]
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True).stdout

    def earlier_server(self, key: str, name: str, slots: int) -> Daemon:
        """A device server of the earlier version."""
        flags = ("--name", name, "--slots", str(slots))
        return self.daemons.server(key, *flags, tracker=self.single, offers=slots, env=self.environment)

    def replicate(self) -> None:
        """Replicas take the place of the single tracker, the first of them at its address and with its state."""
        assert self.single.terminate() == 0
        self.replicas.append(Replica(self.daemons, self.engine, self.state, port=self.port))
        self.leads()
        for _ in range(2):
            self.add()
        self.where = ",".join(replica.daemon.where for replica in self.replicas)

    @staticmethod
    def history(replica: Replica) -> set[str]:
        """The ended leases in a replica's file."""
        return {lease for (lease,) in rows(replica.state, "SELECT lease FROM leases")}


def test_one_tracker_of_before_becomes_three_and_these_get_a_new_version(
    daemons: Daemons, engine: etcd.Etcd, earlier: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tvm.rpc")
    lab = UpgradedLab(daemons, engine, tmp_path, earlier)
    lab.earlier_server(KEY, "old", 2)
    lab.earlier_server("gpu", "gpu0", 1)
    lab.earlier_server("spare", "spare0", 1)
    daemons.server(TVMS_KEY, tracker=lab.single, flavour="tvm")
    with rpcsys.connect_tracker(lab.where) as admin:
        assert admin.drain("spare0")

    def client(program: str, key: str, tree: Path = earlier) -> Client:
        return Client(daemons, program, lab.single.where, key, tree)

    holder = client(HOLDS, "gpu")
    holder.wait_more(1)
    waiting = client(HOLDS, "gpu")
    looping = [client(LEASES, KEY), client(TVMS, TVMS_KEY, ROOT), client(TVMS, KEY, ROOT)]
    for each in looping:
        each.wait_more()

    lab.replicate()
    assert lab.history(lab.replicas[0])
    for each in looping:
        each.wait_more()
    with rpcsys.connect_tracker(lab.where) as admin:
        assert {row["lease"]: row["holder"] for row in admin.leases() if row["key"] == "gpu"} == {
            holder.lines()[0]: "earlier"
        }
        assert {row["name"]: row["state"] for row in admin.summary()["servers"]}["spare0"] == "drained"
    daemons.server(KEY, "--tracker", lab.where, "--slots", "2")
    assert waiting.lines() == []

    with load(lab, clients=2) as leased:
        leader = lab.leads()
        for replica in (*(one for one in lab.replicas if one is not leader), leader):
            assert replica.daemon.terminate() == 0
            leased.wait_more()
            replica.start()
            for each in looping:
                each.wait_more()
    first = holder.end()
    waiting.wait_more(1)  # it kept its place
    names = {*first, *waiting.end(), *leased.leases, *looping[0].end()}
    for each in looping[1:]:
        each.end()
    lab.wait_free(4)
    wait_until(lambda: lab.history(lab.replicas[0]) >= names, SOON_S, "the first one has all of them")

    def same() -> bool:  # also what ended before there were replicas
        first, *others = [lab.history(replica) for replica in lab.replicas]
        return all(other == first for other in others)

    wait_until(same, SOON_S, "all have the same")
    lab.stop()
