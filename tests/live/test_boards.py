"""A device runtime's archive, unpacked in an empty folder of an emulated board, started there and leased from here."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import ModelError, RemoteError, SessionTimeout
from tests.combinations import usual
from tests.live import artefacts
from tests.live.artefacts import LENGTH, Artefacts, relax_weights
from tests.live.boards import KEY, Board, packed, unpacked
from tests.live.daemons import Daemon, Daemons, queue, rss_mb, wait_free
from tests.live.emulated import MACHINES

tvm = pytest.importorskip("tvm")
rpc = pytest.importorskip("tvm.rpc")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

START_S = 120.0
ROUTES = ("direct", "proxy")
#: A machine and a route. Each machine is usual once.
WAYS = [(name, route) for name in ("aarch64", "armhf", "old") for route in ROUTES]
USUAL = {("aarch64", "direct"), ("armhf", "proxy"), ("old", "proxy")}


@dataclass
class Site:
    """A board that serves, and its tracker on this host."""

    board: Board
    tracker: Daemon
    server: Daemon
    artefacts: Artefacts

    def request(self, **options) -> rpcsys.Session:
        return rpcsys.connect_tracker(self.tracker.address).request(KEY, wait_timeout=START_S, **options)

    def tvms(self, limit_s: int = 0) -> rpc.RPCSession:
        return rpc.connect_tracker(*self.tracker.address).request(KEY, session_timeout=limit_s)

    def free_again(self) -> None:
        wait_free(self.tracker, KEY, 1, START_S)


@pytest.fixture(scope="module")
def make_site(
    module_daemons: Callable[[], Daemons], shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Site]:
    """``make_site(machine, route)``: one site of each pair, shared by all tests."""
    made: dict[tuple[str, str], Site] = {}

    def make(name: str, route: str) -> Site:
        machine = MACHINES[name]
        board = unpacked(packed(shared, machine.triple), machine, tmp_path_factory.mktemp("board"))
        daemons = module_daemons()
        tracker = daemons.tracker()
        if route == "proxy":
            proxy = daemons.proxy("--tracker", tracker.where)
            where = ("--through-proxy", "--host", proxy.address[0], "--port", str(proxy.address[1]))
        else:
            where = ("--host", "127.0.0.1", "--port", "0")
        server = board.start(daemons, *where, "--tracker", tracker.where)
        wait_free(tracker, KEY, 1, START_S)
        return Site(board, tracker, server, artefacts.compiled(shared, machine.triple))

    def once(name: str, route: str) -> Site:
        if (name, route) not in made:
            made[name, route] = make(name, route)
        return made[name, route]

    return once


@pytest.fixture(params=usual([(way,) for way in WAYS], lambda way: way[0] in USUAL), ids="-".join)
def site(request: pytest.FixtureRequest, make_site: Callable[[str, str], Site]) -> Iterator[Site]:
    site = make_site(*request.param)
    yield site
    gc.collect()  # TVM ends a session with its last reference, and its virtual machine refers to itself
    site.free_again()


# --- our client --------------------------------------------------------------------------------


def test_the_server_has_only_the_unpacked_packages(site: Site) -> None:
    with site.request() as session:
        assert session.info["machine"]["arch"] == {"aarch64": "aarch64", "arm": "armv7l"}[site.board.machine.qemu]
        found = session.info["capabilities"]
        assert not any(found[name] for name in ("numpy", "onnxruntime", "tvm"))
        assert found["cloudpickle"]


def test_a_function_compiled_by_tvm_runs(site: Site) -> None:
    x = np.arange(LENGTH, dtype="float32")
    with site.request() as session:
        addone = session.load_module(site.artefacts.addone)["addone"]
        assert addone(x, rpcsys.empty(LENGTH)).tolist() == (x + 1).tolist()
        assert addone.time_evaluator(number=2, repeat=2)(x, np.zeros_like(x)).mean > 0


def test_files_are_uploaded_and_downloaded(site: Site) -> None:
    content = os.urandom(1 << 20)
    with site.request() as session:
        session.upload(content, "some.bin")
        assert session.listdir() == ["some.bin"]
        assert session.download("some.bin") == content


def test_exceptions_reach_the_client(site: Site) -> None:
    with site.request() as session:
        addone = session.load_module(site.artefacts.addone)["addone"]
        with pytest.raises(RemoteError, match="argument"):
            addone(np.zeros(3, "float32"))
        with pytest.raises(ModelError, match="x86_64"):
            session.load_module(artefacts_of_this_machine(site))
        assert session.get_function("testing.echo")(1) == 1


def artefacts_of_this_machine(site: Site) -> Path:
    return artefacts.compiled(site.artefacts.folder.parent).addone


def test_a_session_over_its_limit_ends(site: Site) -> None:
    with site.request(session_timeout=2) as session:
        nap = session.load_module(site.artefacts.session_faults)["nap"]
        started = time.monotonic()
        with pytest.raises(SessionTimeout):
            nap()
        assert time.monotonic() - started < 30


def test_a_relax_network_runs(site: Site) -> None:
    x = np.random.default_rng(1).standard_normal((4, 8)).astype("float32")
    with site.request() as session:
        model = session.load_module(site.artefacts.relax)
        np.testing.assert_allclose(model(x), np.maximum(x @ relax_weights(), 0), rtol=1e-4, atol=1e-5)


# --- TVM's client ------------------------------------------------------------------------------


def test_tvm_runs_a_function_and_times_it(site: Site) -> None:
    remote = site.tvms()
    remote.upload(str(site.artefacts.addone))
    module = remote.load_module("addone.so")
    x = tvm.runtime.tensor(np.arange(LENGTH, dtype="float32"), remote.cpu())
    y = tvm.runtime.tensor(np.zeros(LENGTH, "float32"), remote.cpu())
    module["addone"](x, y)
    np.testing.assert_array_equal(y.numpy(), np.arange(LENGTH) + 1)
    timed = module.time_evaluator("addone", remote.cpu(), number=3, repeat=2)(x, y)
    assert timed.mean > 0


def test_tvm_runs_a_relax_network(site: Site) -> None:
    remote = site.tvms()
    remote.upload(str(site.artefacts.relax))
    machine = tvm.relax.VirtualMachine(remote.load_module("relax.so"), remote.cpu())
    x = np.random.default_rng(2).standard_normal((4, 8)).astype("float32")
    machine.set_input("main", tvm.runtime.tensor(x, remote.cpu()))
    machine.invoke_stateful("main")
    y = machine.get_outputs("main").numpy()
    np.testing.assert_allclose(y, np.maximum(x @ relax_weights(), 0), rtol=1e-4, atol=1e-5)


def test_tvm_moves_files(site: Site) -> None:
    content = bytearray(os.urandom(300_000))
    remote = site.tvms()
    remote.upload(content, "some.bin")
    assert remote.download("some.bin") == content


def test_tvm_gets_exceptions_and_the_limit(site: Site) -> None:
    remote = site.tvms(limit_s=3)
    remote.upload(str(site.artefacts.session_faults))
    faults = remote.load_module("session_faults.so")
    with pytest.raises(Exception, match="nowhere"):
        remote.load_module("nowhere.so")
    with pytest.raises(Exception, match="session_timeout") as caught:
        faults["nap"]()
    assert type(caught.value).__name__ == "RPCSessionTimeoutError"


# --- costs --------------------------------------------------------------------------------------


def test_the_archive_has_at_most_three_megabytes(shared: Path, record_property) -> None:
    size = packed(shared, "aarch64-linux-gnu").stat().st_size
    record_property("aarch64 archive with both libraries, MB", round(size / 1e6, 2))
    assert size <= 3_000_000


@pytest.mark.parametrize("name", ["aarch64", "armhf"])
def test_a_server_registers_in_three_s(
    name: str, shared: Path, daemons: Daemons, tmp_path: Path, record_property
) -> None:
    machine = MACHINES[name]
    board = unpacked(packed(shared, machine.triple), machine, tmp_path / "board")
    tracker = daemons.tracker()
    took = []
    while len(took) < 12 and min(took[1:], default=9) > 3:  # the first start compiles
        started = time.monotonic()
        server = board.start(daemons, "--host", "127.0.0.1", "--port", "0", "--tracker", tracker.where)
        wait_free(tracker, KEY, 1, START_S)
        took.append(time.monotonic() - started)
        idle = server.tree()
        memory = rss_mb(idle[:1]), len(idle)
        assert server.terminate(60) == 0
        wait_free(tracker, KEY, 0, START_S)
    record_property("first start, s", round(took[0], 2))
    record_property("best later start, s", round(min(took[1:]), 2))
    record_property("idle server, resident with qemu, MB", round(memory[0], 1))
    # On a busy machine the limit grows with the load.
    assert min(took[1:]) <= 3 * max(1, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert queue(tracker, KEY)["free"] == 0
