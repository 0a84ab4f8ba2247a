"""Clients that stop reading, send slowly or disappear: other clients do not wait."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

import rpcsys
from rpcsys.wire import frames
from tests.live.daemons import ROOT, Daemon, Daemons, alive, wait_until
from tests.live.probe import SessionProbe
from tests.live.processes import is_init, is_tvm_zygote

KEY = "board"
OTHERS_S = 5.0  # for a session of some milliseconds, on a busy machine
NOTICED_S = 15.0  # the documented limit
STUCK_NOTICED_S = 40.0  # the same limit after some seconds without reading
STUCK_S = 8.0
LARGE = 1 << 30
TRICKLE_S = 3.0


@pytest.fixture
def server(daemons: Daemons) -> Daemon:
    return daemons.server(
        KEY,
        *("--tvm", "off", "--preload", "none", "--import", "tests.live.session_faults"),
        *("--slots", "2", "--host", "0.0.0.0"),
    )


def others_are_served(server: Daemon) -> None:
    began = time.monotonic()
    with rpcsys.connect(*server.address, key=KEY, timeout=OTHERS_S) as session:
        assert session.get_function("testing.echo")("here") == "here"
    assert time.monotonic() - began < OTHERS_S


def is_other(pid: int) -> bool:
    return is_init(pid) or is_tvm_zygote(pid)


def sessions_of(server: Daemon) -> set[int]:
    (zygote,) = server.children()
    return {child.pid for child in zygote.children() if alive(child.pid) and not is_other(child.pid)}


def test_a_client_that_stops_reading_a_large_result_delays_no_other(server: Daemon):
    stalled = rpcsys.connect(*server.address, key=KEY)
    pid = stalled.info["pid"]
    stalled.get_function("fault.bytes").submit(256 << 20)
    process = psutil.Process(pid)
    wait_until(lambda: process.memory_info().rss > 256 << 20, 20, "the result is being sent")
    for _ in range(3):
        others_are_served(server)
    assert alive(pid)
    stalled.close()
    wait_until(lambda: not alive(pid), OTHERS_S, "its session is gone")
    others_are_served(server)


def test_a_client_that_sends_a_large_array_slowly_delays_no_other(server: Daemon):
    before = sessions_of(server)
    with SessionProbe(server.address, KEY, "-session=rpcsys/1") as slow:
        slow.socket.sendall(b"".join(bytes(piece) for piece in frames.encode(frames.HELLO, 0, {"version": 1})))
        tensor = {"@": "tensor", "dtype": "uint8", "shape": [LARGE], "buffer": 0}
        head = json.dumps({"f": "testing.echo", "a": [tensor]}).encode()
        slow.socket.sendall(struct.pack("<IBBHIIQ", len(head), frames.CALL, 0, 0, 0, 1, LARGE) + head)
        memory = {pid: psutil.Process(pid).memory_info().rss for pid in before if alive(pid)}
        until = time.monotonic() + TRICKLE_S
        while time.monotonic() < until:
            slow.socket.sendall(bytes(100))
            others_are_served(server)
            time.sleep(0.1)
        for pid, rss in memory.items():
            if alive(pid):
                assert psutil.Process(pid).memory_info().rss - rss < 32 << 20
    wait_until(lambda: len(sessions_of(server)) == 2, OTHERS_S, "both slots have a waiting child")
    others_are_served(server)


# --- a client with a cut link ------------------------------------------------------------------


@dataclass
class RemoteNetwork:
    """A network with a link to this one; ``cut`` cuts the link. ``host``: the address of this end."""

    name: str
    interface: str
    host: str

    def cut(self) -> None:
        run("ip", "link", "set", self.interface, "down")


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


@pytest.fixture
def remote() -> Iterator[RemoteNetwork]:
    if os.geteuid() != 0:
        pytest.skip("only root can create a network namespace")
    number = os.getpid() % 60000
    name, ours, theirs = f"rpcsys{number}", f"rs{number}a", f"rs{number}b"
    net = f"10.{200 + number % 50}.{number // 50 % 250}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        run("ip", "address", "add", f"{net}.1/24", "dev", ours)
        run("ip", "link", "set", ours, "up")
        run("ip", "-n", name, "address", "add", f"{net}.2/24", "dev", theirs)
        run("ip", "-n", name, "link", "set", theirs, "up")
    except (OSError, subprocess.CalledProcessError) as error:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
        pytest.skip(f"no network namespaces here: {error}")
    yield RemoteNetwork(name, ours, f"{net}.1")
    subprocess.run(["ip", "link", "del", ours], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)


CLIENT = """
import os, signal, sys, time
import rpcsys
session = rpcsys.connect(sys.argv[1], int(sys.argv[2]), key=sys.argv[3])
print(session.info["pid"], flush=True)
if sys.argv[4] != "nothing":
    sys.stdin.readline()
    session.get_function("fault.bytes").submit(256 << 20)
if sys.argv[4] == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("doing", ["nothing", "reading", "stopped"])
def test_the_session_of_an_unreachable_client_ends(server: Daemon, remote: RemoteNetwork, doing: str, record_property):
    port = str(server.address[1])
    client = subprocess.Popen(
        ["ip", "netns", "exec", remote.name, sys.executable, "-c", CLIENT, remote.host, port, KEY, doing],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        pid = int(client.stdout.readline())
        noticed_s = STUCK_NOTICED_S if doing == "stopped" else NOTICED_S
        if doing != "nothing":
            client.stdin.write("now\n")
            client.stdin.flush()
            wait_until(lambda: psutil.Process(pid).memory_info().rss > 256 << 20, 20, "a result is on its way")
        if doing == "stopped":
            time.sleep(STUCK_S)
        remote.cut()
        began = time.monotonic()
        client.send_signal(signal.SIGKILL)
        others_are_served(server)
        wait_until(lambda: not alive(pid), noticed_s + 5, "its session is gone")
        took = time.monotonic() - began
        record_property(f"session of a client ({doing}) ended after", f"{took:.1f} s")
        assert took < noticed_s + 0.5
        others_are_served(server)
    finally:
        client.kill()
        client.wait(10)


def test_a_socket_detects_an_unreachable_peer():
    """The limit follows from the keep-alive options: the first probe after 5 s, three probes 3 s apart."""
    from rpcsys.link.tcp import tune

    with socket.socket() as sock:
        tune(sock)
        option = sock.getsockopt
        idle, interval, count = (
            option(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        )
        assert idle + interval * count < NOTICED_S
        assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) < NOTICED_S * 1000
