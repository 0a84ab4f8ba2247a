"""Clients and boards that are stopped for a while, as in a debugger: no data is lost, and no other client waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rpcsys import module
from tests.live import deployed
from tests.live.clients import Client
from tests.live.daemons import ROOT, START_S, Daemon, Daemons, wait_until
from tests.live.fault_lab import KEY, FaultLab

pytestmark = pytest.mark.slow

STOPPED_S = 25.0  # TCP_USER_TIMEOUT is 14 s
EVERY_S = 4.0
LARGE = 64 << 20
SMALL = 1 << 20  # fits into the kernel's buffers: no process is still sending


def queued(pid: int) -> tuple[int, int]:
    """The unsent and the unread bytes of a process's TCP connections."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(entry).removeprefix("socket:[").rstrip("]"))
        except FileNotFoundError:
            continue
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    both = [row[4].split(":") for row in rows if row[9] in inodes]
    return sum(int(unsent, 16) for unsent, _ in both), sum(int(unread, 16) for _, unread in both)


def start(lab: FaultLab, route: str) -> list[int]:
    """Start a board with four slots; the pids, beside the sessions', that send to clients."""
    if route == "direct":
        lab.start(4)
        return []
    lab.tracker = lab.daemons.tracker()
    proxy = lab.daemons.proxy("--tracker", lab.tracker.where)
    lab.server = lab.daemons.behind(proxy, KEY, *lab.server_flags(4), flavour="ours")
    lab.server.await_ready_line()
    lab.free(4)
    return [proxy.pid]


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    process = psutil.Process(pid)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, START_S, f"{pid} has stopped")


def stop_inside_a_result(client: Client, size: int, senders: list[int]) -> None:
    """Stop the client after its request has arrived on the board; then let the board continue."""
    stop(client.session_pid)
    client.send("get", size)
    wait_until(lambda: queued(client.session_pid)[1], START_S, "the request has arrived")
    client.stop()
    os.kill(client.session_pid, signal.SIGCONT)
    senders = [client.session_pid, *senders]
    wait_until(lambda: any(queued(pid)[0] for pid in senders), START_S, "the client does not read")


@pytest.mark.parametrize("route", ["direct", "proxied"])
def test_sessions_survive_stopped_clients_and_boards(fault_lab: FaultLab, route: str):
    senders = start(fault_lab, route)
    large, small, stuck = (fault_lab.client().leased() for _ in range(3))
    for client, size in ((small, SMALL), (large, LARGE)):
        client.call("put", 1)
        assert client.call("get", 1)["value"] is True  # TVM's client has looked up the function
        client.call("put", size)
        stop_inside_a_result(client, size, senders)
    stop(stuck.session_pid)
    stuck.send("put", LARGE)
    wait_until(lambda: queued(stuck.process.pid)[0], START_S, "the board does not read")

    end = time.monotonic() + STOPPED_S
    while time.monotonic() < end:
        fault_lab.still_serves()
        time.sleep(EVERY_S)

    os.kill(stuck.session_pid, signal.SIGCONT)
    assert "error" not in (answer := stuck.read()), answer
    for client in (large, small):
        client.resume()
        assert (answer := client.read()).get("value") is True, answer
    for client, size in ((large, LARGE), (small, SMALL), (stuck, LARGE)):
        assert (answer := client.call("get", size)).get("value") is True, answer
        client.close()
    fault_lab.free(4)


CLIENT = """
import os, signal, sys
import rpcsys
with rpcsys.connect(sys.argv[1], int(sys.argv[2]), serve="many") as many:
    many("x", 1)
    result = many.submit("xyz", int(sys.argv[3]))
    print("stopping", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    assert result.result(60) == "xyz" * int(sys.argv[3])
    assert many("zyx", 2) == "zyxzyx"
    print("right", flush=True)
"""


@pytest.fixture
def server(daemons: Daemons, tmp_path: Path) -> Daemon:
    library = tmp_path / "many.so"
    module.export_library(module.python({"main": lambda text, times: text * times}), library)
    deployed.put(tmp_path / "deploy", "many", library)
    return daemons.server("board", *deployed.FLAGS, "--deploy", str(tmp_path / "deploy"))


def test_stopped_clients_of_a_deployed_module_lose_nothing(server: Daemon):
    def client(size: int) -> subprocess.Popen[str]:
        command = (sys.executable, "-c", CLIENT, *map(str, server.address), str(size // 3))
        return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True)

    clients = [client(LARGE), client(SMALL)]
    try:
        for each in clients:
            assert each.stdout.readline() == "stopping\n"
        time.sleep(STOPPED_S)
        for each in clients:
            each.send_signal(signal.SIGCONT)
            assert each.stdout.readline() == "right\n"
    finally:
        for each in clients:
            each.kill()
            each.communicate()
