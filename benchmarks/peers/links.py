"""Sessions over a link of a given rate, between two network namespaces: plain and encrypted.

The namespaces belong to the worker and its server, and end with them.
"""

from __future__ import annotations

import subprocess
from typing import Any

import rpcsys
from benchmarks.launch import leave_network
from benchmarks.peers.ours import DEVICE, KEY, Rpcsys
from rpcsys.link import standing_key

NEAR, FAR = "10.77.99.1", "10.77.99.2"
#: So many bytes pass at once, and what would wait longer than 20 ms is dropped.
SHAPED = ("root", "tbf", "burst", "1mb", "latency", "20ms", "rate")
SERVER = ("-m", "rpcsys.server", "--host", "0.0.0.0", "--port", "0", "--silent", *DEVICE)


class OverLink(Rpcsys):
    """``rate``: bits per second each way, as tc writes it."""

    rate = "1gbit"

    def start(self) -> None:
        leave_network()
        self.port = self.start_server((*SERVER, *self._flags()), own_network=True)
        link(self._servers[-1].pid, self.rate)

    def _flags(self) -> tuple[str, ...]:
        return ()

    def _connect(self) -> Any:
        return rpcsys.connect(FAR, self.port, key=self._key())

    def _key(self) -> str:
        return KEY


class FasterLink(OverLink):
    rate = "2500mbit"


class EncryptedOverLink(OverLink):
    """The same with a server that has a standing key."""

    def _flags(self) -> tuple[str, ...]:
        self._path = str(self.place.folder / f"{type(self).__name__}.key")
        return ("--standing-key", self._path)

    def _key(self) -> str:
        return standing_key.match_key(self._path)


class EncryptedOverFasterLink(EncryptedOverLink):
    rate = FasterLink.rate


def link(pid: int, rate: str) -> None:
    """Link this process's network namespace with that of another process."""
    there = ("nsenter", "-t", str(pid), "-n")
    run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(pid))
    for inside, device, address in (((), "near", NEAR), (there, "far", FAR)):
        run(*inside, "ip", "address", "add", f"{address}/30", "dev", device)
        run(*inside, "ip", "link", "set", device, "up")
        run(*inside, "tc", "qdisc", "add", "dev", device, *SHAPED, rate)


def run(*command: str) -> None:
    """Run a command. Raises OSError with its standard error."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
