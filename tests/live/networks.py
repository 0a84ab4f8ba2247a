"""Networks of their own, in namespaces of the kernel: rooms that reach each other by the cables laid between them.

A cable can be cut, mended, and poor from the start: 50 ms of delay each way and one packet of a hundred lost, by the
kernel's netem where there is one, else by a process that carries the packets (:mod:`tests.live.poorline`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import IO

import pytest

from tests.live.daemons import ROOT, reaper

CLONE_NEWNET = 0x40000000
NOBODY = "02:00:00:00:00:99"
DELAY_MS, LOSS_PERCENT = 50, 1.0


def run(*command: str) -> None:
    """Run a command to its end; its own words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def enter(namespace: IO[str]) -> None:
    """Move this thread into a network namespace, named by its open file."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace.name}")


@dataclass(frozen=True)
class Room:
    """A namespace."""

    name: str

    def inside(self, *command: str) -> tuple[str, ...]:
        """The command, to be run there. It keeps its process number."""
        return ("ip", "netns", "exec", self.name, *command)

    def ip(self, *words: str) -> None:
        """Run ``ip`` there."""
        run("ip", "-n", self.name, *words)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Have this thread make its sockets there, and the threads and processes that it starts."""
        with open("/proc/thread-self/ns/net") as before:
            with open(f"/run/netns/{self.name}") as namespace:
                enter(namespace)
            try:
                yield
            finally:
                enter(before)


@dataclass
class Cable:
    """From one room to another: ``ends`` are interfaces, ``hosts`` their addresses; ``made_by`` says how it is poor."""

    rooms: tuple[Room, Room]
    ends: tuple[str, str]
    hosts: tuple[str, str]
    made_by: str = ""

    def cut(self) -> None:
        """Nothing arrives any more, and neither end is told: each sends to a machine that is not there."""
        for room, end, host in zip(self.rooms, self.ends, reversed(self.hosts), strict=True):
            room.ip("neighbour", "replace", host, "lladdr", NOBODY, "dev", end, "nud", "permanent")

    def mend(self) -> None:
        """Packets arrive again."""
        for room, end, host in zip(self.rooms, self.ends, reversed(self.hosts), strict=True):
            room.ip("neighbour", "del", host, "dev", end)

    def move(self, which: int, host: str) -> None:
        """One end gets another address, as from a DHCP server."""
        room, end = self.rooms[which], self.ends[which]
        room.ip("address", "del", self.hosts[which] + "/24", "dev", end)
        room.ip("address", "add", host + "/24", "dev", end)
        self.hosts = (host, self.hosts[1]) if which == 0 else (self.hosts[0], host)


class Networks:
    """Rooms and cables, all gone when it is closed."""

    def __init__(self) -> None:
        self._rooms: list[Room] = []
        self._cables = 0
        self._carriers: list[subprocess.Popen[bytes]] = []

    def room(self, what: str) -> Room:
        """A new room, with nothing in it but its own loopback."""
        room = Room(f"rpcsys-{os.getpid()}-{len(self._rooms)}-{what}")
        try:
            run("ip", "netns", "add", room.name)
        except OSError as error:
            pytest.fail(f"this test needs network namespaces (root, or CAP_SYS_ADMIN and CAP_NET_ADMIN): {error}")
        self._rooms.append(room)
        room.ip("link", "set", "lo", "up")
        run(*room.inside("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"))
        return room

    def cable(self, one: Room, other: Room, *, poor: bool = False) -> Cable:
        """A cable with a network of its own; room ``one`` is 10.77.N.1 there, the other 10.77.N.2."""
        self._cables += 1
        number = self._cables
        ends = (f"c{number}a", f"c{number}b")
        hosts = (f"10.77.{number}.1", f"10.77.{number}.2")
        cable = Cable((one, other), ends, hosts)
        one.ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", other.name)
        if poor:
            cable.made_by = self._spoil(cable)
        for room, end, host in zip(cable.rooms, ends, hosts, strict=True):
            room.ip("address", "add", host + "/24", "dev", end)
            room.ip("link", "set", end, "up")
        return cable

    def _spoil(self, cable: Cable) -> str:
        how = ("netem", "delay", f"{DELAY_MS}ms", "loss", f"{LOSS_PERCENT}%")
        try:
            for room, end in zip(cable.rooms, cable.ends, strict=True):
                run(*room.inside("tc", "qdisc", "add", "dev", end, "root", *how))
            return "tc netem"
        except OSError:
            pass  # a kernel without it
        cable.rooms[0].ip("link", "del", cable.ends[0])
        names = [part for room, end in zip(cable.rooms, cable.ends, strict=True) for part in (room.name, end)]
        command = [sys.executable, "-m", "tests.live.poorline", *names, str(DELAY_MS), str(LOSS_PERCENT)]
        carrier = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True)
        reaper.note("+", carrier.pid)
        self._carriers.append(carrier)
        assert carrier.stdout is not None
        assert carrier.stdout.readline() == b"ready\n"
        return "a process that carries the packets (this kernel has no netem)"

    def close(self) -> None:
        """Remove everything. What still runs in the rooms must have been ended before."""
        for carrier in self._carriers:
            carrier.kill()
            carrier.wait()
            if carrier.stdout is not None:
                carrier.stdout.close()
            reaper.note("-", carrier.pid)
        for room in self._rooms:
            subprocess.run(["ip", "netns", "del", room.name], capture_output=True, check=False)

    def __enter__(self) -> Networks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
