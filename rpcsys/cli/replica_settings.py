"""The settings of a lab with replicas: those of etcd, and the flags of the tracker. No file, no socket."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rpcsys.errors import ConfigError, UsageError
from rpcsys.link.address import address_text
from rpcsys.tracker.replicas.config import ETCD_PORT, EnginePlace, parse_place

PEER_PORT = 2380
DATA_FOLDER = "/var/lib/etcd/rpcsys"
#: The names of settings that are read, too.
NAME, DATA, CLUSTER, FLAGS = "ETCD_NAME", "ETCD_DATA_DIR", "ETCD_INITIAL_CLUSTER", "TRACKER_FLAGS"
_LEAST = 3  # members of etcd: of two, both must run
_OWN_FLAGS = re.compile(r"(?:^|\s)--(?:replicate|advertise)[=\s]\s*\S+")
_HOST = re.compile(r"[A-Za-z0-9._:-]+")


@dataclass(frozen=True)
class EngineHost:
    """A machine with a member of etcd: ``host`` is its name for the others, ``address`` what that means."""

    host: str
    address: str

    def url(self, port: int) -> str:
        """Where its etcd is."""
        return _url(self.address, port)


def check_hosts(trackers: Sequence[str], engines: Sequence[str], lab: str) -> None:
    """Raise `UsageError` unless these machines can have the trackers and the engine of a lab."""
    hosts = (*trackers, *engines)
    for host in hosts:
        if not _HOST.fullmatch(host) or re.fullmatch(r"[^:]+:\d*", host):
            raise UsageError(f"{host!r} is no host: write its name or address, without a port")
        if hosts.count(host) > 1:
            raise UsageError(f"{host} is named twice")
    if len(trackers) < 2:
        raise UsageError("one tracker has nobody who takes over: name two or three hosts")
    if len(hosts) < _LEAST:
        why = "two members of etcd are worse than one, as both must run"
        raise UsageError(f"{why}: name a third machine, which needs no tracker, with --engine HOST")
    parse_place(str(_place(hosts, lab)))


def check_members(members: Sequence[EngineHost]) -> None:
    """Raise `ConfigError` if two of the names mean the same machine."""
    known: dict[str, str] = {}
    for member in members:
        other = known.setdefault(member.address, member.host)
        if other != member.host:
            raise ConfigError(f"{other} and {member.host} are both {member.address}: name each machine once")


def etcd_settings(members: Sequence[EngineHost], this: EngineHost, also: Iterable[str] = ()) -> dict[str, str]:
    """The settings of etcd on one of the machines; ``also``: addresses at which it listens for trackers, too."""
    cluster = ",".join(f"{member.host}={member.url(PEER_PORT)}" for member in members)
    return {
        NAME: this.host,
        DATA: DATA_FOLDER,
        "ETCD_LISTEN_PEER_URLS": this.url(PEER_PORT),
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": this.url(PEER_PORT),
        "ETCD_LISTEN_CLIENT_URLS": ",".join([this.url(ETCD_PORT), *(_url(one, ETCD_PORT) for one in also)]),
        "ETCD_ADVERTISE_CLIENT_URLS": this.url(ETCD_PORT),
        CLUSTER: cluster,
        "ETCD_HEARTBEAT_INTERVAL": "50",
        "ETCD_ELECTION_TIMEOUT": "500",
        "ETCD_AUTO_COMPACTION_MODE": "revision",
        "ETCD_AUTO_COMPACTION_RETENTION": "1000",
    }


def tracker_flags(before: str, hosts: Sequence[str], this: str, lab: str) -> str:
    """The flags of the tracker on ``this`` host; of those ``before``, all others stay.

    Raises `UsageError`: they are those of a closed lab.
    """
    if re.search(r"(?:^|\s)--lab[=\s]", before):
        raise UsageError("a closed lab has one tracker, and the one here has --lab: its secrets are on one machine")
    others = _OWN_FLAGS.sub("", f" {before}").strip()
    return f"{others} --replicate {_place(hosts, lab)} --advertise {this}".strip()


def is_replica(flags: str) -> bool:
    """Whether a tracker with these flags has replicas."""
    return _OWN_FLAGS.search(flags) is not None


def same_cluster(one: str, other: str) -> bool:
    """Whether two values of `CLUSTER` have the same members."""
    return {*one.split(",")} == {*other.split(",")}


def _place(hosts: Sequence[str], lab: str) -> EnginePlace:
    return EnginePlace(tuple((host, ETCD_PORT) for host in hosts), lab)


def _url(address: str, port: int) -> str:
    return f"http://{address_text(address, port)}"
