"""Trackers of several sites: a device elsewhere, cut off and healed, and no device that stays out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rpcsys
from rpcsys.errors import SessionLost, TrackerError, UnknownKey, WaitTimeout
from rpcsys.link.link import Link
from tests import etcd
from tests.live.daemons import Daemons, wait_until
from tests.live.networks import DELAY_MS, Namespace, Networks
from tests.live.probe import TrackerProbe
from tests.live.sites import KEY, SOON_S, Site, sites

pytestmark = pytest.mark.open_lab("the members of a closed lab are known to its own tracker alone")
ANYWHERE, IN_PARIS = {"site": "any"}, {"site": "paris"}


class Waiting(threading.Thread):
    """A client that waits for a device in a thread, and holds it until `done` is set."""

    def __init__(self, site: Site, user: str, labels: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.site, self.user, self.labels = site, user, labels
        self.places: list[dict[str, Any]] = []
        self.lease: dict[str, Any] = {}
        self.done = threading.Event()
        self.start()

    def run(self) -> None:
        with rpcsys.connect_tracker(self.site.where, user=self.user) as tracker:
            with tracker.request(KEY, labels=self.labels, on_queued=self.places.append) as session:
                session.ping(30)
                self.lease = session.lease
                self.done.wait(SOON_S)

    def queued(self) -> dict[str, Any]:
        """Its place, as soon as it has one."""
        return wait_until(lambda: self.places and dict(self.places[-1]), SOON_S, f"{self.user} waits")

    def leased(self) -> str:
        return wait_until(lambda: self.lease.get("lease"), SOON_S, f"{self.user} has a device")

    def end(self) -> None:
        self.done.set()
        self.join(SOON_S)
        assert not self.is_alive()


def test_a_device_elsewhere_is_leased_renewed_and_ended(daemons: Daemons) -> None:
    berlin, paris = sites(daemons, "berlin", "paris")
    paris.board("--name", "far")
    with rpcsys.connect_tracker(berlin.where, user="ann") as ann:
        with pytest.raises((UnknownKey, WaitTimeout)):
            ann.request(KEY, wait_timeout=0.5)  # its own site has none
        with pytest.raises(TrackerError, match="site 'rome' is not known here; there are: any, berlin, paris"):
            ann.request(KEY, labels={"site": "rome"})
        session = ann.request(KEY, labels=ANYWHERE, wait_timeout=SOON_S)
        lease = session.lease["lease"]
        assert lease.startswith("paris.")
        assert ann.renew(session, 600) >= 600
        (row,) = paris.summary()["leases"]
        assert (row["lease"], row["holder"], row["state"]) == (lease, "ann@berlin", "running")
        with rpcsys.connect_tracker(berlin.where, user="bob") as bob, pytest.raises(TrackerError, match="of yours"):
            bob.renew(lease, 5)
        ann.end_lease(lease, "enough")
        paris.wait_free(1)
        with pytest.raises(SessionLost):
            session.ping(30)
        with ann.request(KEY, labels=IN_PARIS, wait_timeout=SOON_S) as again:
            assert again.lease["lease"].startswith("paris.")
    shown = subprocess.run(
        [sys.executable, "-m", "rpcsys.query", "--tracker", berlin.where], capture_output=True, text=True, check=True
    )
    assert "site berlin; peers: paris" in shown.stdout


def test_tvms_client_asks_for_any_site_and_for_one(daemons: Daemons) -> None:
    rpc = pytest.importorskip("tvm.rpc")
    berlin, paris = sites(daemons, "berlin", "paris")
    paris.board(slots=2)
    tracker = rpc.connect_tracker("127.0.0.1", berlin.port)
    for key in (f"{KEY}@any", f"{KEY}@paris"):
        remote = tracker.request(key, session_timeout=60)
        remote.upload(bytearray(b"there"), "of")
        assert remote.download("of") == b"there"
        (row,) = paris.summary()["leases"]
        assert row["holder"].endswith("@berlin")
        del remote
        paris.wait_free(2)
    tracker.close()


def test_a_key_with_a_sign_means_nothing_without_a_site(daemons: Daemons) -> None:
    tracker = daemons.tracker()
    daemons.server("rpi4@any", tracker=tracker)
    with rpcsys.connect_tracker(tracker.where) as client:
        with client.request("rpi4@any", wait_timeout=SOON_S) as session:
            assert session.lease["key"] == "rpi4@any"
        assert "sites" not in client.summary()


def test_guests_stand_behind_a_sites_own_users(daemons: Daemons) -> None:
    berlin, paris = sites(daemons, "berlin", "paris")
    paris.board()
    first = Waiting(paris, "first", {})
    first.leased()
    guest = Waiting(berlin, "guest", ANYWHERE)
    wait_until(lambda: [holder["user"] for holder in guest.queued()["holders"]] == ["first"], SOON_S, "it waits there")
    own = Waiting(paris, "own", {})
    own.queued()
    first.end()
    own.leased()
    assert not guest.lease
    own.end()
    guest.leased()
    guest.end()


@pytest.mark.parametrize("how", ["paused", "killed"])
def test_a_site_that_is_cut_off_keeps_its_own_and_is_asked_again(daemons: Daemons, tmp_path: Path, how: str) -> None:
    berlin, paris = sites(daemons, "berlin", "paris")
    paris.flags = (*paris.flags, "--state-dir", str(tmp_path))
    assert paris.daemon.terminate() == 0
    paris.start()
    board = paris.board()
    berlin.board()
    berlin.wait_peers("paris")
    holders = [Waiting(berlin, "here", {}), Waiting(paris, "there", {})]
    for each in holders:
        each.leased()
    guests: list[Waiting] = []
    for number in (1, 2):
        guests.append(Waiting(berlin, f"guest{number}", IN_PARIS))
        wait_until(lambda number=number: paris.pending() == number, SOON_S, "it waits in Paris")
    if how == "paused":
        os.kill(paris.daemon.pid, signal.SIGSTOP)
    else:
        paris.daemon.kill()
    try:
        berlin.wait_peers("paris (cut off)")
        for guest in guests:
            wait_until(lambda guest=guest: "cannot be reached" in guest.queued()["note"], SOON_S, "it is told so")
        own = Waiting(berlin, "own", ANYWHERE)
        own.queued()
        holders[0].end()
        assert own.leased().startswith("berlin.")
        own.end()
    finally:
        if how == "paused":
            os.kill(paris.daemon.pid, signal.SIGCONT)
        else:
            paris.start()
    berlin.wait_peers("paris")
    assert not any(guest.lease for guest in guests)
    holders[1].end()
    guests[0].leased()
    assert not guests[1].lease
    guests[0].end()
    assert guests[1].leased().startswith("paris.")
    guests[1].end()
    paris.wait_free(1)
    assert board.running()


def test_a_guests_device_comes_back_when_its_client_or_its_site_is_gone(daemons: Daemons) -> None:
    berlin, paris = sites(daemons, "berlin", "paris")
    paris.board()
    with Link.open(("127.0.0.1", berlin.port), user="ann") as link:
        link.ask("request", timeout=SOON_S, key=KEY, labels=ANYWHERE)
        assert [row["holder"] for row in paris.summary()["leases"]] == ["ann@berlin"]
    paris.wait_free(1)
    link = Link.open(("127.0.0.1", berlin.port), user="ann")
    link.ask("request", timeout=SOON_S, key=KEY, labels=ANYWHERE)
    berlin.daemon.kill()
    paris.wait_free(1)
    link.close()


def test_a_stranger_asks_for_nobody(daemons: Daemons) -> None:
    _, paris = sites(daemons, "berlin", "paris")
    paris.board()
    ask = {"op": "request", "id": 2, "key": KEY}
    guest = {"op": "guest", "id": 2, "guest": 1, "user": "ann", "address": "10.0.0.1", "ask": ask}
    with TrackerProbe(paris.daemon.address) as probe:
        answer = probe.ask(guest)
        assert (answer["ok"], answer["error"]) == (False, "Forbidden")
        answer = probe.ask({"op": "site", "id": 0, "site": "rome"})
        assert "site paris has no peer of that name" in answer["message"]
        assert probe.ask({**guest, "id": 3})["ok"] is False
    assert paris.summary()["leases"] == []


def test_a_thousand_requests_for_any_site_are_each_served_once(daemons: Daemons) -> None:
    lab = sites(daemons, "berlin", "paris", "rome")
    for site in lab:
        site.board(slots=2)
    leases: list[str] = []
    match_keys: list[str] = []
    failed: list[str] = []

    def work(site: Site, user: str, count: int) -> None:
        try:
            with Link.open(("127.0.0.1", site.port), user=user) as link:
                for _ in range(count):
                    (lease,) = link.ask("request", timeout=SOON_S, key=KEY, labels=ANYWHERE)["leases"]
                    leases.append(lease["lease"])
                    match_keys.append(lease["matchkey"])
                    link.ask("release", timeout=SOON_S, lease=lease["lease"])
        except Exception as error:
            failed.append(f"{type(error).__name__}: {error}")

    clients = [threading.Thread(target=work, args=(lab[n % 3], f"user{n}", 50), daemon=True) for n in range(20)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(3 * SOON_S)
    assert failed == []
    assert len(leases) == len({*leases}) == len({*match_keys}) == 1000
    served = Counter(lease.partition(".")[0] for lease in leases)
    assert {*served} == {"berlin", "paris", "rome"}, "all sites have served"
    for site in lab:
        site.wait_free(2)
        assert site.pending() == 0
        assert site.summary()["leases"] == []


def test_a_site_with_replicas_is_reached_at_the_one_that_leads(daemons: Daemons, tmp_path: Path) -> None:
    berlin, one, other = (Site(daemons, name) for name in ("berlin", "paris", "paris"))
    berlin.flags = ("--peer", f"paris={one.where},{other.where}")
    berlin.start()
    with etcd.running() as engine:
        for number, replica in enumerate((one, other)):
            replica.flags = ("--replicate", str(engine.place()), "--state-dir", str(tmp_path / f"{number}"))
            replica.flags = (*replica.flags, "--advertise", replica.where, "--peer", f"berlin={berlin.where}")
            replica.start()
            berlin.wait_peers("paris")
        where = f"{one.where},{other.where}"
        daemons.server(KEY, "--tracker", where)
        with rpcsys.connect_tracker(berlin.where, user="ann") as ann:
            for leader in (one, other):
                with ann.request(KEY, labels=IN_PARIS, wait_for_key=True, wait_timeout=SOON_S) as session:
                    session.ping(30)
                    assert session.lease["lease"].startswith("paris.")
                if leader is one:
                    one.daemon.kill()
        assert other.daemon.terminate() == 0


class Distant:
    """Berlin and the sites that it knows, each in a network namespace of its own, 50 ms away each way."""

    def __init__(self, daemons: Daemons, networks: Networks, *others: str) -> None:
        self._daemons = daemons
        self.berlin = networks.namespace("berlin")
        spaces = {name: networks.namespace(name) for name in others}
        self.links = {name: networks.link(self.berlin, spaces[name], impaired=True, loss=0.0) for name in others}
        peers = [("--peer", f"{name}={link.hosts[1]}:9190") for name, link in self.links.items()]
        self._start(self.berlin, "rpcsys.tracker", "--site", "berlin", *(word for peer in peers for word in peer))
        for name, link in self.links.items():
            self._start(spaces[name], "rpcsys.tracker", "--site", name, "--peer", f"berlin={link.hosts[0]}:9190")
            self._start(spaces[name], "rpcsys.server", "--key", KEY, "--tracker", "127.0.0.1:9190", "--tvm", "off")

    def _start(self, namespace: Namespace, module: str, *flags: str) -> None:
        port = "9190" if module == "rpcsys.tracker" else "0"
        command = namespace.inside(sys.executable, "-m", module, "--port", port, *flags)
        self._daemons.launch(module, command).await_ready_line()

    def turn(self, name: str, how: str) -> None:
        """Have the link to a site "down" or "up"."""
        self.berlin.ip("link", "set", self.links[name].ends[0], how)

    def client(self) -> Link:
        """A client in Berlin."""
        return Link.open(("127.0.0.1", 9190), user="ann")

    def lease(self, client: Link) -> tuple[dict[str, Any], float]:
        """A device anywhere, and after how many seconds."""
        begin = time.monotonic()
        answer = client.ask("request", timeout=SOON_S, key=KEY, labels=ANYWHERE, wait_for_key=True)
        return answer["leases"][0], time.monotonic() - begin


@pytest.mark.slow
@pytest.mark.parametrize("others", [("paris",), ("paris", "rome")])
def test_a_device_elsewhere_is_granted_within_four_round_trips(daemons: Daemons, others: tuple[str, ...]) -> None:
    with Networks() as networks:
        distant, times = Distant(daemons, networks, *others), []
        with distant.berlin.entered(), distant.client() as client:
            for _ in range(5):
                lease, took = distant.lease(client)
                times.append(took)
                assert lease["host"] in {link.hosts[1] for link in distant.links.values()}, "its client can reach it"
                client.ask("release", timeout=SOON_S, lease=lease["lease"])
        assert min(times) >= 2 * DELAY_MS / 1000
        assert min(times) < 4 * 2 * DELAY_MS / 1000


@pytest.mark.slow
def test_of_three_sites_one_is_cut_off_and_healed(daemons: Daemons) -> None:
    with Networks() as networks:
        distant = Distant(daemons, networks, "paris", "rome")
        with distant.berlin.entered(), distant.client() as client:
            first, _ = distant.lease(client)
            client.ask("release", timeout=SOON_S, lease=first["lease"])
            distant.turn("paris", "down")
            left, _ = distant.lease(client)
            assert left["lease"].startswith("rome."), "Rome lends while Paris is cut off"
            healing = threading.Timer(1.0, distant.turn, ("paris", "up"))
            healing.start()
            other, _ = distant.lease(client)
            healing.join()
            assert other["lease"].startswith("paris."), "and Paris when it is back"
