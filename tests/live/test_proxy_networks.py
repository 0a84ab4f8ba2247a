"""Boards behind proxies in separate networks: the clients', the proxies' and the board's.

Only the proxies connect the clients' network to the board's. Nothing here is a mock.
"""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import rpcsys
from rpcsys.graph import samples
from tests.live.artefacts import Artefacts, relax_weights
from tests.live.clients import Client
from tests.live.daemons import START_S, Daemon, Daemons, alive, descendants, wait_until
from tests.live.networks import Link, Namespace, Networks
from tests.live.probe import TrackerProbe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

KEY = "board"
PORT, TRACKER_PORT = 9090, 9190
SILENT_S = 25.0  # a silent connection is closed after 14 s; a busy machine needs more
SOON_S = 10.0  # for what takes a second, likewise


class NetLab:
    """A tracker and a proxy in one namespace, a board in another, clients in a third."""

    def __init__(self, daemons: Daemons, networks: Networks, artefacts: Artefacts) -> None:
        self.daemons, self.networks, self.artefacts = daemons, networks, artefacts
        self.outside = networks.namespace("clients")
        self.middle = networks.namespace("middle")
        self.board = networks.namespace("board")
        self.near = networks.link(self.middle, self.outside)
        self.clients: list[Client] = []
        self.tvm_served = False
        self.far: Link
        self.tracker: Daemon
        self.proxy: Daemon
        self.server: Daemon

    @property
    def started(self) -> list[Daemon]:
        return self.daemons.started

    def start(self, *, impaired: bool = False) -> NetLab:
        """Start all daemons; wait until the board is free."""
        self.far = self.networks.link(self.middle, self.board, impaired=impaired)
        self.start_tracker()
        self.proxy = self.start_proxy(self.middle, "--tracker", f"127.0.0.1:{TRACKER_PORT}")
        self.start_server(self.far.hosts[0])
        return self

    def start_tracker(self, *flags: str) -> None:
        self.tracker = self.daemon(self.middle, "rpcsys.tracker", TRACKER_PORT, *flags)
        self.tracker.address = (self.near.hosts[0], TRACKER_PORT)  # its address for clients

    def start_proxy(self, namespace: Namespace, *flags: str) -> Daemon:
        return self.daemon(namespace, "rpcsys.proxy", PORT, *flags)

    def start_server(self, *proxies: str) -> None:
        """Start the board's server; wait until its slot is free."""
        hosts = [word for proxy in proxies for word in ("--host", proxy)]
        flags = ("--through-proxy", *hosts, "--key", KEY, "--tvm", "python", "--grace", "1")
        self.server = self.daemon(
            self.board, "rpcsys.server", PORT, *flags, "--import", "tests.live.session_faults", "--log-format", "json"
        )
        self.free()

    def daemon(self, namespace: Namespace, module: str, port: int, *flags: str) -> Daemon:
        command = (sys.executable, "-m", module, *flags, "--port", str(port), "--port-end", str(port + 1))
        daemon = self.daemons.launch(f"{module}-{namespace.name}", namespace.inside(*command))
        daemon.await_ready_line()
        return daemon

    # From the clients' namespace

    def client(self, kind: str) -> Client:
        """A client that requests a board; see :meth:`Client.leased`."""
        inside = self.outside.inside
        client = Client(kind, self.tracker, KEY, self.artefacts.session_faults, inside=inside)
        self.clients.append(client)
        return client

    def queue(self) -> dict[str, int]:
        with self.outside.entered(), TrackerProbe(self.tracker.address) as probe:
            return probe.summary()["queue_info"].get(KEY, {"free": 0, "pending": 0})

    def registered(self) -> int:
        """The number of registered servers of the key."""
        with self.outside.entered(), TrackerProbe(self.tracker.address) as probe:
            return [row["key"] for row in probe.summary()["server_info"]].count(f"server:{KEY}")

    def free(self, deadline_s: float = START_S) -> float:
        """Wait until the board is free; the seconds that it took."""
        began = time.monotonic()
        wait_until(lambda: self.queue() == {"free": 1, "pending": 0}, deadline_s, "the board is free", 0.05)
        return round(time.monotonic() - began, 2)

    def request(self) -> rpcsys.Session:
        """A session in this process."""
        with self.outside.entered(), rpcsys.connect_tracker(self.tracker.address) as tracker:
            return tracker.request(KEY, wait_timeout=START_S)

    def held(self) -> dict[str, int]:
        """Figures that leaks increase: descriptors of the daemons, processes of the board, leases.

        The first TVM client starts a zygote, which stays: so there has been one before.
        """
        if not self.tvm_served:
            self.tvm_served = True
            self.use("tvm")
        with self.outside.entered(), rpcsys.connect_tracker(self.tracker.address) as tracker:
            leases = len(tracker.leases())
        return {
            "proxy": psutil.Process(self.proxy.pid).num_fds(),
            "server": psutil.Process(self.server.pid).num_fds(),
            "processes": len(descendants(self.server.pid)),
            "leases": leases,
        }

    def use(self, kind: str) -> None:
        """A new client leases the board, uses it and releases it."""
        client = self.client(kind).leased()
        assert client.call("pid")["value"] == client.session_pid
        client.close()
        self.free()

    def settled(self, before: dict[str, int]) -> None:
        """Wait until the figures are as before."""
        wait_until(lambda: self.held() == before, START_S, f"{before} is held", 0.2)

    def stop(self) -> None:
        for client in self.clients:
            client.destroy()
        self.daemons.stop()


@pytest.fixture
def lab(daemons: Daemons, artefacts: Artefacts) -> Iterator[NetLab]:
    with Networks() as networks:
        made = NetLab(daemons, networks, artefacts)
        yield made
        made.stop()


def fails(client: Client, within_s: float) -> float:
    """Check that the client's call fails with a message; the seconds that it took."""
    began = time.monotonic()
    answer = client.read(within_s)
    assert "error" in answer, answer
    assert answer["message"]
    if "RpcsysError" in answer["error"]:
        assert answer["error"][0] == "SessionLost"
    return round(time.monotonic() - began, 1)


def model_runs(session: rpcsys.Session, folder: Path, network: str) -> None:
    """Check that a network's outputs are the same as here."""
    path = folder / f"{network}.onnx"
    samples.save(samples.light_model(network), path)
    data = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype("float32")
    model = session.load_module(path)
    (wanted,) = samples.run_here(path, {model.inputs[0]["name"]: data}).values()
    np.testing.assert_allclose(model(data), wanted, rtol=1e-4, atol=1e-5)


def relax_runs(remote: Any, artefacts: Artefacts) -> None:
    """Check that a Relax executable gives numpy's result, with TVM's client."""
    import tvm
    from tvm import relax

    remote.upload(str(artefacts.relax))
    machine = relax.VirtualMachine(remote.load_module("relax.so"), remote.cpu(0))
    x = np.random.default_rng(1).standard_normal((4, 8)).astype("float32")
    machine.set_input("main", tvm.runtime.tensor(x, remote.cpu(0)))
    machine.invoke_stateful("main")
    outputs = machine.get_outputs("main").numpy()
    np.testing.assert_allclose(outputs, np.maximum(x @ relax_weights(), 0), rtol=1e-5)


def with_tvms_client(lab: NetLab) -> None:
    from tvm import rpc

    with lab.outside.entered():
        remote = rpc.connect_tracker(*lab.tracker.address).request(KEY)
        relax_runs(remote, lab.artefacts)
        del remote
        gc.collect()  # a VirtualMachine refers to itself
    lab.free()


# Without faults


def test_models_run_on_a_board_that_clients_cannot_reach(lab: NetLab, tmp_path: Path):
    lab.start()
    with lab.outside.entered(), pytest.raises(OSError, match="unreachable"):
        socket.create_connection((lab.far.hosts[1], PORT), timeout=SOON_S)
    before = lab.held()
    with lab.request() as session:
        model_runs(session, tmp_path, "squeezenet")
    with_tvms_client(lab)
    lab.settled(before)


def test_models_run_on_a_board_behind_two_proxies(lab: NetLab, tmp_path: Path):
    inner_namespace = lab.networks.namespace("inner")
    between = lab.networks.link(lab.middle, inner_namespace)
    lab.far = lab.networks.link(inner_namespace, lab.board)
    lab.start_tracker()
    lab.proxy = lab.start_proxy(lab.middle, "--tracker", f"127.0.0.1:{TRACKER_PORT}")
    inner = lab.start_proxy(inner_namespace, "--next", f"{between.hosts[0]}:{PORT}")
    lab.start_server(lab.far.hosts[0])
    before = lab.held()
    with lab.request() as session:
        assert session.lease["host"] == lab.near.hosts[0]
        model_runs(session, tmp_path, "squeezenet")
    with_tvms_client(lab)
    lab.settled(before)
    client = lab.client("rpcsys").leased()
    client.send("nap")
    inner.kill()
    fails(client, SOON_S)
    lab.start_proxy(inner_namespace, "--next", f"{between.hosts[0]}:{PORT}")
    lab.free()
    lab.use("rpcsys")


# Faults


@pytest.mark.parametrize("kind", ["rpcsys", "tvm"])
def test_a_call_fails_when_the_link_to_the_board_is_cut(lab: NetLab, kind: str, record_property):
    lab.start()
    before = lab.held()
    client = lab.client(kind).leased()
    client.send("nap")
    lab.far.cut()
    record_property("error_after_s", fails(client, SILENT_S))
    lab.far.repair()
    record_property("free_after_s", lab.free(SILENT_S))
    assert not alive(client.session_pid)
    lab.use(kind)
    client.destroy()
    lab.settled(before)


@pytest.mark.parametrize("kind", ["rpcsys", "tvm"])
def test_a_client_waits_for_a_board_that_has_just_been_cut_off(lab: NetLab, kind: str, record_property):
    """The tracker and the proxy do not know it yet. The client gets the board when the link is repaired."""
    lab.start()
    before = lab.held()
    lab.far.cut()
    began = time.monotonic()
    client = lab.client(kind)
    wait_until(lambda: not lab.registered(), SILENT_S, "the board is unregistered")
    lab.far.repair()
    client.leased(2 * SILENT_S)
    record_property("leased_after_s", round(time.monotonic() - began, 1))
    client.close()
    client.destroy()
    lab.free()
    lab.settled(before)


@pytest.mark.parametrize("kind", ["rpcsys", "tvm"])
def test_a_killed_proxy_serves_again_after_its_restart(lab: NetLab, kind: str, record_property):
    lab.start()
    before = lab.held()
    client = lab.client(kind).leased()
    client.send("nap")
    lab.proxy.kill()
    record_property("error_after_s", fails(client, SOON_S))
    lab.proxy = lab.start_proxy(lab.middle, "--tracker", f"127.0.0.1:{TRACKER_PORT}")
    record_property("free_after_s", lab.free())
    assert not alive(client.session_pid)
    lab.use(kind)
    client.destroy()
    lab.settled(before)


@pytest.mark.parametrize("kind", ["rpcsys", "tvm"])
def test_a_board_with_a_new_address_serves_again(lab: NetLab, kind: str, record_property):
    lab.start()
    before = lab.held()
    client = lab.client(kind).leased()
    client.send("nap")
    lab.far.move(1, lab.far.hosts[0] + "7")
    record_property("error_after_s", fails(client, SILENT_S))
    record_property("free_after_s", lab.free(SILENT_S))
    assert not alive(client.session_pid)
    lab.use(kind)
    client.destroy()
    lab.settled(before)


def test_on_an_impaired_link_nothing_fails(lab: NetLab, record_property):
    lab.start(impaired=True)
    record_property("impaired_by", lab.far.impaired_by)
    before = lab.held()
    with lab.request() as session:
        echo = session.get_function("testing.echo")
        data = np.arange(20000, dtype="float32")
        for number in range(20):
            np.testing.assert_array_equal(echo(data + number), data + number)
        relax = session.load_module(lab.artefacts.relax)
        x = np.ones((4, 8), "float32")
        np.testing.assert_allclose(relax(x), np.maximum(x @ relax_weights(), 0), rtol=1e-5)
    with_tvms_client(lab)
    for _ in range(5):
        lab.use("rpcsys")
    lab.settled(before)


def test_the_second_proxy_serves_when_the_first_is_killed(lab: NetLab, tmp_path: Path, record_property):
    """The second proxy has its own namespace and sends its address for clients to the tracker."""
    aside = lab.networks.namespace("aside")
    to_clients = lab.networks.link(aside, lab.outside)
    to_tracker = lab.networks.link(lab.middle, aside)
    to_board = lab.networks.link(aside, lab.board)
    lab.far = lab.networks.link(lab.middle, lab.board)
    lab.start_tracker("--proxy-from", "127.0.0.1", "--proxy-from", to_tracker.hosts[1])
    lab.proxy = lab.start_proxy(lab.middle, "--tracker", f"127.0.0.1:{TRACKER_PORT}")
    tracker = f"{to_tracker.hosts[0]}:{TRACKER_PORT}"
    second = lab.start_proxy(aside, "--tracker", tracker, "--custom-addr", to_clients.hosts[0])
    lab.start_server(lab.far.hosts[0], to_board.hosts[0])
    client = lab.client("rpcsys").leased()
    client.send("nap")
    lab.proxy.kill()
    fails(client, SOON_S)
    record_property("free_after_s", lab.free(SOON_S))
    lab.proxy = second
    before = lab.held()
    with lab.request() as session:
        assert session.lease["host"] == to_clients.hosts[0]
        model_runs(session, tmp_path, "squeezenet")
    with_tvms_client(lab)
    client.destroy()
    lab.settled(before)
