"""A network namespace of a process's own: its loopback is up, and no other interface is there."""

import json
import socket
import subprocess
import sys

import pytest

from rpcsys.server.sandbox import network_namespace

WHY_NOT = network_namespace.probe()

INSIDE = """
import json, socket
from rpcsys.server.sandbox import network_namespace, pid_namespace
pid_namespace.leave(pid_namespace.NETWORK)
network_namespace.raise_loopback()
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname()).close()
try:
    socket.create_connection(("192.0.2.1", 9), 5)
except OSError as error:
    print(json.dumps([socket.if_nameindex(), error.strerror]))
"""


@pytest.mark.skipif(bool(WHY_NOT), reason=f"no network namespaces here: {WHY_NOT}")
def test_only_loopback_is_there_and_up():
    done = subprocess.run([sys.executable, "-c", INSIDE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[[1, "lo"]], "Network is unreachable"]


def test_the_probe_leaves_this_process_where_it_is():
    before = [name for _, name in socket.if_nameindex()]
    network_namespace.probe()
    assert [name for _, name in socket.if_nameindex()] == before
