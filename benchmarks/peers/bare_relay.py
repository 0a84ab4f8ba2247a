"""The bare relay: ``relay.c``, compiled for the run. What one thread reaches that copies each byte twice.

It stands between two ends of this process, as other relays do, or within a session of ours.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from benchmarks.peers import ours
from benchmarks.peers.relays import Forwarder, other_core
from benchmarks.peers.subject import Place, announce

COMPILER = "cc"
SOURCE = Path(__file__).with_name("relay.c")


class BareRelay(Forwarder):
    program = COMPILER

    def command(self, target: str) -> tuple[str, ...]:
        return command(self.place, target)


class BareRelayedSessions(ours.Rpcsys):
    """Our client and our server; the relay has its own core if there is a second one."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        if shutil.which(COMPILER) is None:
            raise ModuleNotFoundError(name=COMPILER)

    def start(self) -> None:
        super().start()
        self.port = self.start_server(command(self.place, str(self.port)), core=other_core(self.place))


def command(place: Place, target: str) -> tuple[str, ...]:
    """The arguments of ``python`` that become a relay to the port ``target``; compiles it at the run's first call."""
    program = place.folder / "relay"
    if not program.exists():
        subprocess.run([COMPILER, "-O2", "-std=gnu11", "-o", str(program), str(SOURCE)], check=True)
    return ("-m", "benchmarks.peers.bare_relay", str(program), target)


def become(program: str, target: str) -> None:
    """Announce a new listener, and execute the relay with it."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.set_inheritable(True)
    announce(listener.getsockname()[1])
    os.execl(program, program, str(listener.fileno()), target)


if __name__ == "__main__":
    become(*sys.argv[1:])
