"""What is left at an unused daemon: leases, requests, processes, folders, descriptors.

The tracker's summary has the leases and the requests in its queues. A server's processes and its sessions' folders are
read from /proc and the disk. Each daemon's descriptors are compared with those at its start.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.live.probe import KEEPERS, asker
from tests.live.processes import alive, children, is_init, is_tvm_zygote

ANSWER_S = 10.0
#: States of leases that end only after some time: their server is gone, or does not report ends.
SUPPOSED = ("server away", "silent", "inferred")


@dataclass
class Watched:
    """A daemon of ours, and the descriptors that it had when it was idle."""

    pid: int
    created: float
    role: str
    address: tuple[str, int] | None
    temporary: Path
    slots: int
    forks: bool = True
    deployed: Path | None = None
    idle: collections.Counter[str] = field(default_factory=collections.Counter)
    zygote_idle: collections.Counter[str] = field(default_factory=collections.Counter)

    @classmethod
    def of(cls, role: str, port: int | None, pid: int) -> Watched:
        """The daemon ``pid`` with the ``role`` tracker, server or proxy, at ``port`` of loopback."""
        process = psutil.Process(pid)
        words, environment = process.cmdline(), process.environ()
        deploy = _flag(words, "--deploy")
        return cls(
            pid,
            process.create_time(),
            role,
            ("127.0.0.1", port) if port and _same_network(pid) else None,
            Path(environment.get("TMPDIR", "/tmp")),
            int(_flag(words, "--slots") or 1),
            "--no-fork" not in words,
            Path(process.cwd(), deploy) if deploy else None,
        )

    def answers(self) -> bool:
        """Whether it runs and is not stopped by SIGSTOP."""
        try:
            process = psutil.Process(self.pid)
            stopped = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)
            return process.create_time() == self.created and not stopped
        except psutil.NoSuchProcess:
            return False

    def folders(self) -> list[Path]:
        """The server's folders of sessions' directories."""
        return [*self.temporary.glob(f"rpcsys-server-{self.pid}-*")]

    def zygote(self) -> psutil.Process | None:
        """The server's zygote."""
        ours = _command(psutil.Process(self.pid))
        return next((one for one in _children(self.pid) if _command(one) == ours or "zygote" in _command(one)), None)

    def left(self, links: Callable[[int], int]) -> Iterator[str]:
        """Describe what is left there; ``links`` counts a process's connections to other daemons."""
        if self.role == "tracker" and self.address is not None:
            yield from _left_at_tracker(self.address)
        if self.role == "server":
            yield from self._left_at_server()
        yield from _more("descriptors", self._own(links), self.idle)
        zygote = self.zygote()
        if zygote is not None and self.zygote_idle:
            yield from _more("the zygote's descriptors", _own_of_zygote(zygote.pid), self.zygote_idle)

    def begun(self) -> bool:
        """Whether it waits in epoll: its first processes are started. True if the kernel does not report that."""
        try:
            where = Path(f"/proc/{self.pid}/wchan").read_text()
        except OSError:
            return True
        return where == "0" or "epoll" in where

    def note_idle(self, links: Callable[[int], int]) -> None:
        """Store its current descriptors as those of its idle state."""
        self.idle = self._own(links)
        self.idle["anon_inode:[eventpoll]"] += self.role != "tracker"  # of its link to a tracker, which may start later
        zygote = self.zygote()
        if zygote is not None:
            self.zygote_idle = _own_of_zygote(zygote.pid)

    def _own(self, links: Callable[[int], int]) -> collections.Counter[str]:
        """Its descriptors, without connections to other daemons and to its own processes."""
        own = descriptors(self.pid)
        own["socket"] -= links(self.pid) + self._control_sockets()
        return own

    def _control_sockets(self) -> int:
        """The number of its zygotes' children: the server has one socket for each."""
        return sum(len(waiting) for _, waiting in self._below_zygotes())

    def _below_zygotes(self) -> Iterator[tuple[list[psutil.Process], list[psutil.Process]]]:
        """For each zygote the inits with their parent, and the other children; the one for TVM's is below the first."""
        zygote = self.zygote()
        if zygote is not None:
            seconds = _second_zygotes(zygote.pid)
            yield _apart([one for one in _children(zygote.pid) if one not in seconds])
            yield from (_apart(_children(one.pid)) for one in seconds)

    def _left_at_server(self) -> Iterator[str]:
        sessions = [path.name for folder in self.folders() for path in folder.glob("session-*")]
        yield from (f"the folder {name}" for name in sessions)
        hosts = 0 if self.deployed is None else len([*self.deployed.glob("*/current")])
        for inits, waiting in self._below_zygotes():
            slots = self.slots if self.forks else 2 * self.slots  # then the one zygote makes TVM's children, too
            fronts = sum(one.name() == "rpcsys-front" for one in waiting)
            deployers = sum(map(_deploys, waiting))
            if len(waiting) > slots + hosts + min(fronts, 1) + deployers:
                yield f"{len(waiting)} processes where {self.slots} slots and {hosts} modules need one each"
            if len(inits) > len(waiting) + 1:  # one of them is their parent
                yield f"{len(inits) - 1} inits where {len(waiting)} processes wait"
            for child in (*inits, *waiting):
                for one in _children(child.pid):
                    yield f"process {one.pid} ({_command(one)[:80]}) below one that waits for a session"


def _deploys(process: psutil.Process) -> bool:
    """Whether a process serves a client that may deploy, and still there: a gateway looks at its server's modules."""
    try:
        connections = process.net_connections("tcp") if process.name() == "rpcsys-deployer" else []
    except psutil.Error:
        return False  # it has ended meanwhile
    return any(one.status == psutil.CONN_ESTABLISHED for one in connections)


def _second_zygotes(zygote: int) -> list[psutil.Process]:
    return [one for one in _children(zygote) if is_tvm_zygote(one.pid)]


def _own_of_zygote(pid: int) -> collections.Counter[str]:
    """A zygote's descriptors, without the socket of a second one."""
    own = descriptors(pid)
    own["socket"] -= len(_second_zygotes(pid))
    return own


def _apart(children: list[psutil.Process]) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The inits with their parent, and the other children."""
    inits = [one for one in children if is_init(one.pid)]
    return inits, [one for one in children if one not in inits]


def _more(what: str, now: collections.Counter[str], idle: collections.Counter[str]) -> Iterator[str]:
    more = {kind: count - idle[kind] for kind, count in now.items() if count > idle[kind]}
    if more:
        yield f"{what}: {more} more than when it was idle"


def _left_at_tracker(address: tuple[str, int]) -> Iterator[str]:
    with asker(address, ANSWER_S) as probe:
        if address[1] not in KEEPERS:
            probe.ask([1, {"op": "hello", "version": "0.1.0"}])
        after: Any = None
        while True:
            page = probe.ask({"op": "summary", "id": 1, "after": after})
            for lease in page["summary"]["leases"]:
                if lease["state"] not in SUPPOSED:
                    yield "lease {lease} of {holder} at {server}".format(**lease)
            for key, queue in page["summary"]["queue_info"].items():
                if queue["pending"]:
                    yield f"{queue['pending']} requests for {key!r}"
            after = page["next"]
            if after is None:
                break
        probe.socket.shutdown(socket.SHUT_WR)
        probe.ended()  # the tracker has closed its descriptor


def descriptors(pid: int) -> collections.Counter[str]:
    """The number of open descriptors of each kind: sockets, pipes and the like, and removed files.

    Files with a name do not count: a log or a database is opened at its first use.
    """
    kinds: collections.Counter[str] = collections.Counter()
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            kinds[_kind(f"/proc/{pid}/fd/{number}")] += 1
    except OSError:
        pass  # it ended meanwhile
    del kinds[""]
    return kinds


def sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets, as in /proc/net/tcp."""
    found = set()
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                kind, _, name = os.readlink(f"/proc/{pid}/fd/{number}").partition(":")
                if kind == "socket":
                    found.add(name.strip("[]"))
    except OSError:
        pass  # it ended meanwhile
    return found


def _kind(link: str) -> str:
    try:
        target = os.readlink(link)
    except OSError:
        return ""
    if target.startswith("/"):
        return "removed file" if target.endswith(" (deleted)") else ""
    return target if target.startswith("anon_inode") else target.partition(":")[0]  # an epoll, a timer, a process


def _children(pid: int) -> list[psutil.Process]:
    found = []
    for child in children(pid):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found.append(psutil.Process(child))
    return [child for child in found if alive(child.pid)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "gone meanwhile"


def _flag(words: list[str], name: str) -> str | None:
    """The value of the flag ``name`` on a command line."""
    return words[words.index(name) + 1] if name in words[:-1] else None


def _same_network(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return False
