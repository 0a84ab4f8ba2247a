"""Peers from a public network, without a lab: refused in a sentence that their client shows, or let in by --admit."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import Forbidden, ServerRefused
from tests.live.daemons import ROOT, Daemons
from tests.live.networks import Namespace, Networks
from tests.live.probe import TrackerProbe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HERE, DESK = "203.0.113.1", "203.0.113.9"
TRACKER, SERVER, PROXY, PARKED, GATEWAY = 9190, 9090, 9290, 9390, 8000
SENTENCE = (
    f"this {{}} serves private networks only, and you come from {DESK}: "
    f"whoever keeps it lets you in with --admit {DESK}"
)


@dataclass
class OpenLab:
    """Daemons in one namespace; a desk in another, at a public address."""

    inside: Namespace
    desk: Namespace


def lab(name: str, daemons: Daemons, networks: Networks, *flags: str) -> OpenLab:
    inside, desk = networks.namespace(name), networks.namespace(f"{name}-desk")
    link = networks.link(inside, desk)
    link.move(0, HERE)
    link.move(1, DESK)

    def start(module: str, port: int, *words: str) -> None:
        command = (sys.executable, "-m", module, "--port", str(port), "--port-end", str(port + 1), *words, *flags)
        daemons.launch(module, inside.inside(*command)).await_ready_line()

    start("rpcsys.tracker", TRACKER)
    server = ("--tvm", "off", "--tracker", f"127.0.0.1:{TRACKER}", "--custom-addr", HERE, "--key", "board")
    start("rpcsys.server", SERVER, *server)
    start("rpcsys.server", PARKED, "--tvm", "off")
    start("rpcsys.proxy", PROXY, "--tracker", f"127.0.0.1:{TRACKER}")
    start("rpcsys.gateway", GATEWAY, "--server", f"127.0.0.1:{SERVER}", "--grpc-port", str(GATEWAY + 1))
    return OpenLab(inside, desk)


@pytest.fixture(scope="module")
def closed(module_daemons) -> Iterator[OpenLab]:
    with Networks() as networks:
        daemons = module_daemons()
        yield lab("closed", daemons, networks)
        daemons.stop()


@pytest.fixture(scope="module")
def admitting(module_daemons) -> Iterator[OpenLab]:
    with Networks() as networks:
        daemons = module_daemons()
        yield lab("admits", daemons, networks, "--admit", "198.51.100.7,203.0.113.0/24")
        daemons.stop()


def test_a_server_says_why_it_refuses(closed: OpenLab) -> None:
    with closed.desk.entered(), pytest.raises(ServerRefused, match=SENTENCE.format("server")):
        rpcsys.connect(HERE, PARKED)


@pytest.mark.parametrize(("port", "what"), [(TRACKER, "tracker"), (PROXY, "proxy")])
def test_tracker_and_proxy_say_why_they_refuse(closed: OpenLab, port: int, what: str) -> None:
    with closed.desk.entered(), pytest.raises(Forbidden, match=SENTENCE.format(what)):
        rpcsys.connect_tracker(f"{HERE}:{port}").request("board", wait_timeout=20)


def test_a_session_through_the_proxy_is_refused_in_the_same_words(closed: OpenLab) -> None:
    with closed.desk.entered(), pytest.raises(ServerRefused, match=SENTENCE.format("proxy")):
        rpcsys.connect(HERE, PROXY, key="board:1")


TVM = f"""
from tvm import rpc
for act in (
    lambda: rpc.connect_tracker("{HERE}", {TRACKER}).request("board", session_timeout=10),
    lambda: rpc.connect_tracker("{HERE}", {TRACKER}).text_summary(),
    lambda: rpc.connect("{HERE}", {PARKED}),
):
    try:
        act()
    except Exception as error:
        print(type(error).__name__, str(error).replace("\\n", " "))
"""


def test_tvms_client_shows_the_trackers_sentence(closed: OpenLab) -> None:
    command = closed.desk.inside(sys.executable, "-c", TVM)
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT, check=False)
    request, summary, session = done.stdout.splitlines()
    assert SENTENCE.format("tracker") in request
    assert SENTENCE.format("tracker") in summary
    assert session
    assert done.returncode == 0, done.stderr


def test_a_stranger_is_told_twenty_times_and_then_cut_off(closed: OpenLab) -> None:
    with closed.desk.entered(), TrackerProbe((HERE, TRACKER)) as probe:
        for _ in range(20):
            code, text = probe.ask([4])
            assert code == -1
            assert SENTENCE.format("tracker") in text
        with pytest.raises((EOFError, OSError)):
            probe.ask([4])


def asked(lab: OpenLab, path: str = "/v2/health/live") -> tuple[int, str]:
    """The status and the text of the gateway's answer to the desk."""
    with lab.desk.entered():
        client = http.client.HTTPConnection(HERE, GATEWAY, timeout=20)
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read().decode()


def live_over_grpc(lab: OpenLab) -> str:
    """The code of the gateway's answer over gRPC to the desk, and its text."""
    words = f"""
import grpc
call = grpc.insecure_channel("{HERE}:{GATEWAY + 1}").unary_unary("/inference.GRPCInferenceService/ServerLive")
try:
    call(b"", timeout=20)
    print("OK")
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""
    done = subprocess.run(lab.desk.inside(sys.executable, "-c", words), capture_output=True, text=True, timeout=60)
    return done.stdout


def test_a_gateway_says_why_it_refuses(closed: OpenLab) -> None:
    status, text = asked(closed)
    assert (status, SENTENCE.format("gateway") in text) == (403, True)
    said = live_over_grpc(closed)
    assert said.startswith("PERMISSION_DENIED")
    assert SENTENCE.format("gateway") in said


def test_an_admitted_network_may_call_models(admitting: OpenLab) -> None:
    assert asked(admitting)[0] == 200
    assert live_over_grpc(admitting) == "OK\n"


def test_the_machine_itself_is_served_at_its_public_address(closed: OpenLab) -> None:
    with closed.inside.entered(), rpcsys.connect(HERE, PARKED) as session:
        assert session.get_function("testing.echo")(7) == 7
    with (
        closed.inside.entered(),
        rpcsys.connect_tracker(f"{HERE}:{TRACKER}").request("board", wait_timeout=20) as session,
    ):
        assert session.get_function("testing.echo")(7) == 7


def test_an_admitted_network_is_served(admitting: OpenLab) -> None:
    array = np.arange(1000.0)
    with admitting.desk.entered():
        with rpcsys.connect(HERE, PARKED) as session:
            assert (session.get_function("testing.echo")(array) == array).all()
        for port in (TRACKER, PROXY):
            with rpcsys.connect_tracker(f"{HERE}:{port}").request("board", wait_timeout=20) as session:
                assert (session.get_function("testing.echo")(array) == array).all()
