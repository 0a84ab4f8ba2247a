"""Network namespaces, and links between them.

A link can be cut and repaired. It can be impaired from the start: 50 ms of delay each way, and 1 % packet loss. The
kernel's netem does that, or without netem a process that forwards the packets (:mod:`tests.live.impaired_link`). A
`Detour` does it for a while.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO

import pytest

from tests.live.daemons import ROOT, reaper

CLONE_NEWNET = 0x40000000
UNUSED = "02:00:00:00:00:99"
DELAY_MS, LOSS_PERCENT = 50, 1.0


def run(*command: str) -> None:
    """Run a command; OSError with its standard error if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def enter(namespace: IO[str]) -> None:
    """Move this thread into the network namespace of an open file."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace.name}")


@dataclass(frozen=True)
class Namespace:
    """A network namespace."""

    name: str

    def inside(self, *command: str) -> tuple[str, ...]:
        """The command line that runs ``command`` there; the pid stays the same."""
        return ("ip", "netns", "exec", self.name, *command)

    def ip(self, *words: str) -> None:
        """Run ``ip`` in it."""
        run("ip", "-n", self.name, *words)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread into it: its new sockets, threads and processes are there."""
        with open("/proc/thread-self/ns/net") as before:
            with open(f"/run/netns/{self.name}") as namespace:
                enter(namespace)
            try:
                yield
            finally:
                enter(before)


@dataclass
class Link:
    """A link of two namespaces: ``ends`` are interfaces, ``hosts`` their addresses; ``impaired_by``: how, or ""."""

    namespaces: tuple[Namespace, Namespace]
    ends: tuple[str, str]
    hosts: tuple[str, str]
    impaired_by: str = ""

    def cut(self, *senders: int) -> None:
        """Drop all packets of these ends (by default of both) without a notice: they go to an unused MAC address."""
        for which in senders or (0, 1):
            way = self.hosts[1 - which], "lladdr", UNUSED, "dev", self.ends[which]
            self.namespaces[which].ip("neighbour", "replace", *way, "nud", "permanent")

    def repair(self, *senders: int) -> None:
        """Deliver packets again."""
        for which in senders or (0, 1):
            self.namespaces[which].ip("neighbour", "del", self.hosts[1 - which], "dev", self.ends[which])

    def move(self, which: int, host: str) -> None:
        """Give one end another address, as a DHCP server may."""
        namespace, end = self.namespaces[which], self.ends[which]
        namespace.ip("address", "del", self.hosts[which] + "/24", "dev", end)
        namespace.ip("address", "add", host + "/24", "dev", end)
        self.hosts = (host, self.hosts[1]) if which == 0 else (self.hosts[0], host)


class Detour:
    """A process that carries what a link would, late, and not all of it, until `end`.

    ``routes``: the networks that each end reaches over the link.
    """

    def __init__(self, link: Link, routes: tuple[Sequence[str], Sequence[str]], delay_ms: int, loss: float) -> None:
        ends = ("d" + link.ends[0], "d" + link.ends[1])
        self._carrier = carry(link.namespaces, ends, delay_ms, loss)
        for namespace, end, host, networks in zip(link.namespaces, ends, link.hosts, routes, strict=True):
            namespace.ip("link", "set", end, "up")
            for network in networks:
                namespace.ip("route", "add", network, "dev", end, "src", host)

    def end(self) -> None:
        """Take the link again; its routes end with the process's interfaces."""
        end_carrier(self._carrier)


def carry(
    namespaces: tuple[Namespace, Namespace], ends: tuple[str, str], delay_ms: int, loss: float
) -> subprocess.Popen[bytes]:
    """A process that forwards packets between two new interfaces."""
    names = [part for one, end in zip(namespaces, ends, strict=True) for part in (one.name, end)]
    command = [sys.executable, "-m", "tests.live.impaired_link", *names, str(delay_ms), str(loss)]
    carrier = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True)
    reaper.note("+", carrier.pid)
    assert carrier.stdout is not None
    assert carrier.stdout.readline() == b"ready\n"
    return carrier


def end_carrier(carrier: subprocess.Popen[bytes]) -> None:
    """Kill it; its interfaces end with it."""
    carrier.kill()
    carrier.wait()
    if carrier.stdout is not None:
        carrier.stdout.close()
    reaper.note("-", carrier.pid)


class Networks:
    """Namespaces and links; ``close`` removes them."""

    def __init__(self) -> None:
        self._namespaces: list[Namespace] = []
        self._links = 0
        self._carriers: list[subprocess.Popen[bytes]] = []

    def namespace(self, what: str) -> Namespace:
        """A new namespace that has only its loopback."""
        namespace = Namespace(f"rpcsys-{os.getpid()}-{len(self._namespaces)}-{what}")
        try:
            run("ip", "netns", "add", namespace.name)
        except OSError as error:
            pytest.fail(f"this test needs network namespaces (root, or CAP_SYS_ADMIN and CAP_NET_ADMIN): {error}")
        self._namespaces.append(namespace)
        namespace.ip("link", "set", "lo", "up")
        run(*namespace.inside("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"))
        return namespace

    def router(self, what: str) -> Namespace:
        """A new namespace that forwards packets between its links."""
        namespace = self.namespace(what)
        run(*namespace.inside("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))
        return namespace

    def link(self, one: Namespace, other: Namespace, *, impaired: bool = False, loss: float = LOSS_PERCENT) -> Link:
        """A link with its own subnet; namespace ``one`` has the address 10.77.N.1, the other 10.77.N.2.

        ``loss``: the per cent of packets that an impaired one loses.
        """
        self._links += 1
        number = self._links
        ends = (f"c{number}a", f"c{number}b")
        hosts = (f"10.77.{number}.1", f"10.77.{number}.2")
        link = Link((one, other), ends, hosts)
        one.ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", other.name)
        if impaired:
            link.impaired_by = self._impair(link, loss)
        for namespace, end, host in zip(link.namespaces, ends, hosts, strict=True):
            namespace.ip("address", "add", host + "/24", "dev", end)
            namespace.ip("link", "set", end, "up")
        return link

    def _impair(self, link: Link, loss: float) -> str:
        how = ("netem", "delay", f"{DELAY_MS}ms", "loss", f"{loss}%")
        try:
            for namespace, end in zip(link.namespaces, link.ends, strict=True):
                run(*namespace.inside("tc", "qdisc", "add", "dev", end, "root", *how))
            return "tc netem"
        except OSError:
            pass  # this kernel has no netem
        link.namespaces[0].ip("link", "del", link.ends[0])
        self._carriers.append(carry(link.namespaces, link.ends, DELAY_MS, loss))
        return "a process that forwards the packets (this kernel has no netem)"

    def close(self) -> None:
        """Remove all namespaces and links. Their processes must have ended."""
        for carrier in self._carriers:
            end_carrier(carrier)
        for namespace in self._namespaces:
            subprocess.run(["ip", "netns", "del", namespace.name], capture_output=True, check=False)

    def __enter__(self) -> Networks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
