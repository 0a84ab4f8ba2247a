"""Device servers in C++, with TVM's own code for the sessions: served by our tracker and proxy as by TVM's.

``loop`` is the session loop of TVM's runtime, ``minrpc`` TVM's MinRPC server with a model compiled into it.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import NotSupported
from tests.live import standalone
from tests.live.artefacts import LENGTH, Artefacts
from tests.live.daemons import START_S, Daemon, Daemons, queue, wait_free, wait_until

tvm = pytest.importorskip("tvm")
rpc = pytest.importorskip("tvm.rpc")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KEY = "board"
SCENARIO_S = 100.0
KINDS = ("loop", "minrpc")


@pytest.fixture(scope="module")
def programs() -> Path:
    return standalone.built()


@pytest.fixture(autouse=True)
def watchdog(programs: Path, daemons: Daemons) -> Iterator[None]:
    """The daemons are stopped if the scenario does not end."""
    timer = threading.Timer(SCENARIO_S, daemons.stop)
    timer.start()
    yield
    timer.cancel()


def start(daemons: Daemons, programs: Path, place: str, daemon: Daemon, kind: str) -> Daemon:
    """A server at the tracker or the proxy, as ``place`` says."""
    command = [str(programs / "server"), place, daemon.address[0], str(daemon.address[1]), KEY]
    command += [str(programs / "minrpc")] if kind == "minrpc" else []
    environment = {"LD_LIBRARY_PATH": ":".join(map(str, standalone.libraries()))}
    return daemons.launch(f"server-{kind}", command, env=environment)


def works(remote: Any, kind: str, artefacts: Artefacts) -> None:
    """Check arrays, a function with its timing, an error, and files where the server has them."""
    device = remote.cpu(0)
    sent = np.arange(LENGTH, dtype="float32")
    x, y = tvm.runtime.tensor(sent, device), tvm.runtime.tensor(np.zeros(LENGTH, "float32"), device)
    assert (x.numpy() == sent).all()
    with pytest.raises(AttributeError, match=r"no\.such\.function"):
        remote.get_function("no.such.function")
    if kind == "loop":
        remote.upload(bytearray(b"some bytes"), "some.bin")
        assert bytes(remote.download("some.bin")) == b"some bytes"
        remote.upload(str(artefacts.addone))
        library = remote.load_module(artefacts.addone.name)
    else:
        library = remote.system_lib()
    library["addone"](x, y)
    assert (y.numpy() == sent + 1).all()
    assert 0 < library.time_evaluator("addone", device, number=3, repeat=2)(x, y).mean < 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trackers", ["tvm", "ours"])
def test_sessions_by_leases(daemons: Daemons, programs: Path, artefacts: Artefacts, kind: str, trackers: str) -> None:
    tracker = daemons.tracker(flavour=trackers)
    start(daemons, programs, "tracker", tracker, kind)
    wait_free(tracker, KEY, 1, START_S)
    connected = rpc.connect_tracker(*tracker.address)
    assert f"server:{KEY}" in connected.text_summary()
    for _ in range(2):  # the server offers itself again when a session is over
        remote = connected.request(KEY, session_timeout=60)
        assert queue(tracker, KEY)["free"] == 0
        works(remote, kind, artefacts)
        del remote
        gc.collect()
        wait_free(tracker, KEY, 1, START_S)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("proxies", ["tvm", "ours"])
def test_sessions_through_a_proxy(
    daemons: Daemons, programs: Path, artefacts: Artefacts, kind: str, proxies: str
) -> None:
    tracker = daemons.tracker()
    proxy = daemons.proxy("--tracker", tracker.where, flavour=proxies)
    start(daemons, programs, "proxy", proxy, kind)
    wait_free(tracker, KEY, 1, START_S)
    for _ in range(2):
        remote = rpc.connect_tracker(*tracker.address).request(KEY, session_timeout=60)
        works(remote, kind, artefacts)
        del remote
        gc.collect()
        wait_free(tracker, KEY, 1, START_S)


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_over_its_limit_ends_and_the_board_is_free(daemons: Daemons, programs: Path, kind: str) -> None:
    tracker = daemons.tracker()
    start(daemons, programs, "tracker", tracker, kind)
    wait_free(tracker, KEY, 1, START_S)
    remote = rpc.connect_tracker(*tracker.address).request(KEY, session_timeout=2)
    (lease,) = rpcsys.connect_tracker(tracker.where).leases()
    assert (lease["key"], lease["state"], lease["holder"]) == (KEY, "silent", "127.0.0.1")
    wait_free(tracker, KEY, 1, START_S)
    with pytest.raises(Exception, match=r"code == RPCCode::kReturn|closed|reset|[Bb]roken"):
        tvm.runtime.tensor(np.ones(LENGTH, "float32"), remote.cpu(0))


CLIENT = """
import sys
from tvm import rpc
remote = rpc.connect_tracker(sys.argv[1], int(sys.argv[2])).request(sys.argv[3], session_timeout=600)
print("leased", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_client_frees_the_board(daemons: Daemons, programs: Path, artefacts: Artefacts, kind: str) -> None:
    tracker = daemons.tracker()
    start(daemons, programs, "tracker", tracker, kind)
    wait_free(tracker, KEY, 1, START_S)
    command = [sys.executable, "-c", CLIENT, tracker.address[0], str(tracker.address[1]), KEY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "leased\n"
        assert queue(tracker, KEY)["free"] == 0
        client.kill()
    wait_free(tracker, KEY, 1, START_S)
    works(rpc.connect_tracker(*tracker.address).request(KEY), kind, artefacts)


@pytest.mark.parametrize("kind", KINDS)
def test_our_client_says_what_the_server_cannot_do(
    daemons: Daemons, programs: Path, artefacts: Artefacts, kind: str
) -> None:
    tracker = daemons.tracker()
    start(daemons, programs, "tracker", tracker, kind)
    wait_free(tracker, KEY, 1, START_S)
    with pytest.raises(NotSupported, match=r"cannot do rpcsys/1 sessions \(it is TVM's own\)") as why:
        rpcsys.connect_tracker(tracker.where).request(KEY)
    assert "\n" not in str(why.value)
    wait_until(lambda: queue(tracker, KEY)["free"] == 1, START_S, "the server offers itself again")
    works(rpc.connect_tracker(*tracker.address).request(KEY), kind, artefacts)
