"""Members of etcd on this machine, for tests: one or three, with or without TLS and users."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpcsys.tracker.replicas.config import EnginePlace, EngineTls, EngineUser
from tests.live.daemons import free_port, reaper

START_S = 30.0  # for a majority that answers, on a machine that does something else
ROOT_USER, USER = EngineUser("root", "of all"), EngineUser("rpcsys", "of the lab's keys")


@dataclass
class Member:
    """One member. Each signal is for its process alone."""

    name: str
    client_port: int
    peer_port: int
    folder: Path
    flags: list[str] = field(default_factory=list)
    before: tuple[str, ...] = ()  # of its command line, such as what enters a namespace
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> tuple[str, int]:
        return "127.0.0.1", self.client_port

    def start(self) -> None:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            command = [*self.before, "etcd", *self.flags]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        reaper.note("+", self.process.pid)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()  # a paused one, too
            self.process.wait(START_S)
            reaper.note("-", self.process.pid)
            self.process = None

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@dataclass
class Etcd:
    """Members that elect a leader among them."""

    members: list[Member]
    folder: Path
    tls: EngineTls | None = None
    user: EngineUser | None = None

    def place(self, lab: str = "lab") -> EnginePlace:
        return EnginePlace(tuple(member.endpoint for member in self.members), lab)

    def ask(self, path: str, asked: dict[str, Any] | None = None, member: int = 0, token: str = "") -> dict[str, Any]:
        """A request past the engine under test; without ``asked`` it is a GET."""
        scheme, context = ("http", None) if self.tls is None else ("https", self.tls.context())
        url = f"{scheme}://127.0.0.1:{self.members[member].client_port}{path}"
        data = None if asked is None else json.dumps(asked).encode()
        request = urllib.request.Request(url, data, {"Authorization": token} if token else {})
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return json.load(answer)

    def wait_healthy(self, *members: int) -> None:
        """Wait until members (none named: all) answer for a majority."""
        until = time.monotonic() + START_S
        for member in members or range(len(self.members)):
            while not self._healthy(member):
                if time.monotonic() > until:
                    log = self.folder / f"{self.members[member].name}.log"
                    raise AssertionError(f"etcd is not healthy:\n{log.read_text()[-3000:]}")
                time.sleep(0.05)

    def leader(self) -> int:
        """Which member leads the others."""
        status = self.ask("/v3/maintenance/status", {})
        identities = [
            self.ask("/v3/maintenance/status", {}, number)["header"]["member_id"] for number in range(len(self.members))
        ]
        return identities.index(status["leader"])

    def heal(self) -> None:
        """Start and wake all members."""
        for member in self.members:
            if member.process is None:
                member.start()
            else:
                member.resume()
        self.wait_healthy()

    def close(self) -> None:
        for member in self.members:
            member.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _healthy(self, member: int) -> bool:
        try:
            return self.ask("/health", member=member)["health"] == "true"
        except (OSError, ValueError, KeyError):
            return False


@contextlib.contextmanager
def running(count: int = 1, *flags: str, tls: bool = False, users: bool = False) -> Iterator[Etcd]:
    """Members that are healthy, on free ports of loopback; killed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="etcd-"))
    members = [Member(f"m{number}", free_port(), free_port(), folder) for number in range(count)]
    etcd = Etcd(members, folder, certificates(folder) if tls else None)
    peers = ",".join(f"{member.name}=http://127.0.0.1:{member.peer_port}" for member in members)
    scheme = "https" if tls else "http"
    for member in members:
        client, peer = f"{scheme}://127.0.0.1:{member.client_port}", f"http://127.0.0.1:{member.peer_port}"
        member.flags += [
            *("--name", member.name, "--data-dir", str(folder / member.name), "--initial-cluster", peers),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *(
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster-token",
                folder.name,
            ),
            *("--heartbeat-interval", "50", "--election-timeout", "500"),
            *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000", *flags),
        ]
        if tls:
            own = ("--cert-file", f"{folder}/server.pem", "--key-file", f"{folder}/server.key")
            member.flags += [*own, "--client-cert-auth", "--trusted-ca-file", f"{folder}/ca.pem"]
    try:
        for member in members:
            member.start()
        etcd.wait_healthy()
        if users:
            _admit(etcd)
        yield etcd
    finally:
        etcd.close()


def _admit(etcd: Etcd) -> None:
    """Make a user of the keys of labs, and close etcd to everybody else."""
    for user in (ROOT_USER, USER):
        etcd.ask("/v3/auth/user/add", {"name": user.name, "password": user.password})
        etcd.ask("/v3/auth/role/add", {"name": user.name})
        etcd.ask("/v3/auth/user/grant", {"user": user.name, "role": user.name})
    start, end = "L3JwY3N5cy8=", "L3JwY3N5czA="  # /rpcsys/ to /rpcsys0
    permission = {"permType": "READWRITE", "key": start, "range_end": end}
    etcd.ask("/v3/auth/role/grant", {"name": USER.name, "perm": permission})
    etcd.ask("/v3/auth/enable", {})
    etcd.user = USER


def certificates(folder: Path) -> EngineTls:
    """A new CA, and what it has signed for etcd (server.pem) and for a replica (client.pem)."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name, usage in (("server", "serverAuth,clientAuth"), ("client", "clientAuth")):
        extensions = folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage={usage}\n")
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", extensions.name, "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return EngineTls(*(str(folder / name) for name in ("ca.pem", "client.pem", "client.key")))
