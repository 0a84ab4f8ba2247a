"""``rpcsys replicas setup`` writes the settings of a host, once and after a question."""

from __future__ import annotations

import contextlib
import errno
import io
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rpcsys.cli import environment_file, replicas
from rpcsys.cli.commands import run_group

NAMES = {
    "lab-1": ["10.9.0.1"], "lab-2": ["10.9.0.2"], "lab-3": ["fd00::3", "10.9.0.3"],
    "mine": ["127.0.1.1"], "other-mine": ["127.0.1.2"], "loop-1": ["127.9.0.1"], "loop-2": ["127.9.0.2"],
    "loop-3": ["::1", "127.9.0.3"],
}  # fmt: skip
HOSTS = ("lab-1", "lab-2", "lab-3")
FLAGS = "--replicate etcd://lab-1:2379,lab-2:2379,lab-3:2379/lab --advertise lab-1"


class Host:
    """Runs the command on a machine with the address 10.9.0.1; its files are below ``root``."""

    def __init__(self, root: Path, captured: pytest.CaptureFixture[str]) -> None:
        self.root, self._captured = root, captured
        self.etcd, self.tracker = root / replicas.ETCD, root / replicas.TRACKER
        self.data = root / "var/lib/etcd/rpcsys/member"
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        status = run_group(["replicas", "setup", *words, "--root", str(self.root)])
        self.out, self.err = self._captured.readouterr()
        return status

    def refused(self, *words: str) -> str:
        before = self.files()
        assert (self(*words), self.out) == (2, "")
        assert self.err.startswith("rpcsys: error: ")
        assert self.err.count("\n") == 1
        assert self.files() == before
        return self.err

    def files(self) -> dict[str, str]:
        return {str(path.relative_to(self.root)): path.read_text() for path in self.root.rglob("*") if path.is_file()}

    def etcds(self, name: str) -> str:
        return environment_file.value(self.etcd.read_text(), name)


@pytest.fixture
def host(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Host:
    def resolve(name: str, *_: Any, **__: Any) -> list[Any]:
        if name not in NAMES:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in NAMES[name]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(replicas, "_is_own", lambda address: address == "10.9.0.1" or address.startswith("127."))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return Host(tmp_path, capsys)


def test_it_shows_what_changes_and_says_what_comes_next(host: Host) -> None:
    assert host(*HOSTS, "--yes") == 0, host.err
    assert "+ETCD_NAME=lab-1\n" in host.out
    assert f"+TRACKER_FLAGS=--port 9190 --http-port 8190 {FLAGS}\n" in host.out
    assert "systemctl restart etcd rpcsys-tracker\n" in host.err
    assert "query_tracker replicas --host lab-1\n" in host.err
    assert host.etcds("ETCD_INITIAL_CLUSTER") == (
        "lab-1=http://10.9.0.1:2380,lab-2=http://10.9.0.2:2380,lab-3=http://10.9.0.3:2380"
    )
    assert "run alone" not in host.err


def test_a_second_time_nothing_changes(host: Host) -> None:
    assert host(*HOSTS, "--yes") == 0
    host.data.mkdir(parents=True)
    before = host.files()
    assert host(*HOSTS) == 0
    assert host.out == "nothing changes: lab-1 has these settings\n"
    assert "systemctl restart" in host.err
    assert host.files() == before


def test_what_else_stands_there_stays_and_the_file_before_is_kept(host: Host) -> None:
    host.etcd.parent.mkdir(parents=True)
    host.etcd.write_text("# etcd's\nETCD_HEARTBEAT_INTERVAL=100\nETCD_INITIAL_CLUSTER_STATE=existing\n")
    host.tracker.parent.mkdir(parents=True)
    text = "# ours\nRPCSYS_ENGINE_PASSWORD=secret\nTRACKER_FLAGS=--port 7 --advertise old\nOTHER=1\n"
    host.tracker.write_text(text)
    assert host(*HOSTS, "--yes", "--lab-name", "lab") == 0
    assert host.etcd.read_text().startswith(
        "# etcd's\nETCD_HEARTBEAT_INTERVAL=50\nETCD_INITIAL_CLUSTER_STATE=existing\n"
    )
    assert host.tracker.read_text() == text.replace("--advertise old", FLAGS)
    assert host.tracker.with_name("tracker.environment.old").read_text() == text
    assert "-TRACKER_FLAGS=--port 7 --advertise old\n" in host.out
    assert "secret" not in host.out


def test_a_dry_run_writes_nothing(host: Host) -> None:
    assert host(*HOSTS, "--dry-run") == 0
    assert "+ETCD_NAME=lab-1\n" in host.out
    assert host.err == ""
    assert host.files() == {}


@pytest.mark.parametrize(("typed", "written"), [("y\n", True), ("n\n", False), ("", False)])
def test_it_asks(host: Host, monkeypatch: pytest.MonkeyPatch, typed: str, written: bool) -> None:
    terminal = io.StringIO(typed)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    assert (host(*HOSTS) == 0) == written
    assert host.etcd.exists() == host.tracker.exists() == written


def test_without_a_terminal_nobody_is_asked(host: Host) -> None:
    assert host(*HOSTS) == 2
    assert "say --yes" in host.err
    assert host.files() == {}


def test_a_machine_with_a_member_of_etcd_alone(host: Host) -> None:
    assert host("lab-2", "lab-3", "--engine", "lab-1", "--yes") == 0
    assert host.etcds("ETCD_NAME") == "lab-1"
    assert not host.tracker.exists()
    assert "systemctl restart etcd\n" in host.err


def test_names_that_mean_loopback_on_their_own_machine(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Debian: 127.0.1.1 is the host's own name in /etc/hosts. The others know its real address."""
    probe = socket.socket

    class Routed(probe):
        def connect(self, address: Any) -> None:
            assert address == ("10.9.0.2", 9)

        def getsockname(self) -> Any:
            return ("10.9.0.7", 1)

    monkeypatch.setattr(socket, "socket", Routed)
    assert host("mine", "lab-2", "lab-3", "--yes") == 0, host.err
    assert host.etcds("ETCD_INITIAL_CLUSTER").startswith("mine=http://10.9.0.7:2380,")
    assert host.etcds("ETCD_LISTEN_CLIENT_URLS") == "http://10.9.0.7:2379,http://127.0.1.1:2379"
    assert host.etcds("ETCD_ADVERTISE_CLIENT_URLS") == "http://10.9.0.7:2379"


def test_an_unreachable_network_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", refuse, raising=False)
    assert "there is no way to lab-2, 10.9.0.2: Network is unreachable" in host.refused("mine", "lab-2", "lab-3")


def test_all_on_one_machine(host: Host) -> None:
    assert host("loop-1", "loop-2", "loop-3", "--this", "loop-2", "--yes") == 0
    assert host.etcds("ETCD_LISTEN_CLIENT_URLS") == "http://127.9.0.2:2379"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lab-1", "lab-2"), "name a third machine"),
        (("lab-1", "lab-2", "lab-9"), "lab-9 has no address"),
        (("lab-2", "lab-3", "--engine", "loop-1", "--this", "lab-2"), "loop-1 is 127.9.0.1 here"),
        (("mine", "other-mine", "lab-2", "--this", "mine"), "other-mine is 127.0.1.2 here"),
        ((*HOSTS, "--this", "lab-4"), "--this lab-4 is none of the hosts: lab-1, lab-2, lab-3"),
        (("loop-1", "loop-2", "lab-3"), "loop-1, loop-2 are all addresses of this machine: say which one"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(host: Host, words: tuple[str, ...], said: str) -> None:
    assert said in host.refused(*words)


def test_it_is_none_of_the_hosts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_is_own", lambda address: False)
    assert "none of lab-1, lab-2, lab-3 is an address of this machine: say which one" in host.refused(*HOSTS)


def test_a_closed_lab_is_refused(host: Host) -> None:
    host.tracker.parent.mkdir(parents=True)
    host.tracker.write_text("TRACKER_FLAGS=--lab /var/lib/rpcsys-tracker/lab\n")
    assert "a closed lab has one tracker" in host.refused(*HOSTS, "--yes")


def test_a_file_that_is_no_text_is_refused(host: Host) -> None:
    host.etcd.parent.mkdir(parents=True)
    host.etcd.write_bytes(b"\xff\n")
    assert host(*HOSTS, "--yes") == 2
    assert "is no text" in host.err


# What is there already


@pytest.mark.parametrize(
    "settings",
    [
        "",  # the settings were lost
        "ETCD_NAME=lab-1\nETCD_INITIAL_CLUSTER=lab-1=http://10.9.0.1:2380\n",
        "ETCD_NAME=x\nETCD_INITIAL_CLUSTER={}\n",
    ],
)
def test_data_of_another_cluster_is_refused(host: Host, settings: str) -> None:
    assert host(*HOSTS, "--yes") == 0
    host.etcd.write_text(settings.format(host.etcds("ETCD_INITIAL_CLUSTER")))
    host.data.mkdir(parents=True)
    assert "rpcsys has the data of another etcd" in host.refused(*HOSTS, "--yes")


def test_an_etcd_that_somebody_has_set_up_is_refused(host: Host) -> None:
    (host.root / "var/lib/etcd/theirs/member").mkdir(parents=True)
    host.etcd.parent.mkdir(parents=True)
    host.etcd.write_text("ETCD_DATA_DIR=/var/lib/etcd/theirs\n")
    assert "theirs has the data of another etcd" in host.refused(*HOSTS, "--yes")


def test_what_debians_package_has_started_is_no_obstacle(host: Host) -> None:
    (host.root / "var/lib/etcd/default/member").mkdir(parents=True)
    assert host(*HOSTS, "--yes") == 0


def test_a_member_keeps_its_folder(host: Host) -> None:
    assert host(*HOSTS, "--yes") == 0
    elsewhere = "ETCD_DATA_DIR=/srv/etcd"
    host.etcd.write_text(host.etcd.read_text().replace("ETCD_DATA_DIR=/var/lib/etcd/rpcsys", elsewhere))
    (host.root / "srv/etcd/member").mkdir(parents=True)
    assert host(*HOSTS) == 0
    assert host.out.startswith("nothing changes")


@pytest.mark.parametrize(("leases", "told"), [(0, False), (1, True), (None, True)])
def test_a_trackers_own_history_is_to_lead_first(host: Host, leases: int | None, told: bool) -> None:
    state = host.root / "var/lib/rpcsys-tracker/tracker.sqlite"
    state.parent.mkdir(parents=True)
    if leases is None:
        state.write_bytes(b"no database, or a damaged one")
    else:
        with contextlib.closing(sqlite3.connect(state)) as file, file:
            file.execute("CREATE TABLE leases (id)")
            file.executemany("INSERT INTO leases VALUES (?)", [(number,) for number in range(leases)])
    assert host(*HOSTS, "--yes") == 0
    assert ("start rpcsys-tracker on the others when this one leads" in host.err) == told
    assert host(*HOSTS) == 0
    assert "run alone" not in host.err  # a replica by now


def test_a_machine_without_a_tracker_needs_none_of_its_packages(tmp_path: Path) -> None:
    """Debian's package rpcsys, without rpcsys-tracker, has no tornado."""
    words = ["127.9.0.1", "127.9.0.2", "--engine", "127.9.0.3", "--this", "127.9.0.3", "--yes"]
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['tornado', 'prometheus_client', 'uvloop']))\n"
        "from rpcsys.cli.commands import run_group\n"
        f"sys.exit(run_group(['replicas', 'setup', *{words}, '--root', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "ETCD_NAME=127.9.0.3\n" in (tmp_path / replicas.ETCD).read_text()
