"""The ways to run a tracker, a proxy, a gateway and a device server: ours, and TVM's."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Flavour:
    """One way to run a tracker, a proxy or a device server.

    ``features``:

    ``listdir``  TVM's client can list the session's directory
    ``jail``     paths outside the session's directory are refused
    ``ready``    it prints our ready line and accepts ``--port 0``
    """

    name: str
    command: tuple[str, ...]
    features: frozenset[str] = frozenset()


def _module(name: str, *flags: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *flags)


TRACKERS = {
    "tvm": Flavour("tvm", _module("tvm.exec.rpc_tracker")),
    "ours": Flavour("ours", _module("rpcsys.tracker"), frozenset({"ready"})),
}
PROXIES = {
    "tvm": Flavour("tvm", _module("tvm.exec.rpc_proxy", "--web-port", "0")),
    "ours": Flavour("ours", _module("rpcsys.proxy"), frozenset({"ready"})),
}
GATEWAY = Flavour("ours", _module("rpcsys.gateway"), frozenset({"ready"}))
#: On Debian's own libraries: grpcio 1.51, in Debian 12.
DEBIAN_GATEWAY = Flavour("debian", ("/usr/bin/python3", "-m", "rpcsys.gateway"), frozenset({"ready"}))
SERVERS = {
    "tvm": Flavour("tvm", _module("tvm.exec.rpc_server")),
    "ours": Flavour("ours", _module("rpcsys.server", "--tvm", "python"), frozenset({"ready", "listdir", "jail"})),
    "ctypes": Flavour("ctypes", _module("rpcsys.server", "--tvm", "ctypes"), frozenset({"ready", "listdir", "jail"})),
    "bare": Flavour("bare", _module("tests.live.bareboard"), frozenset({"ready", "listdir", "jail"})),
}
