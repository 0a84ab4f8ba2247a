"""Modules that are deployed on servers: where each is served, the least busy place first. No lease, no queue."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, nsmallest
from typing import TYPE_CHECKING, Any

from rpcsys.tracker.addresses import reachable
from rpcsys.tracker.entities import Peer

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records

MAX_ROWS = 2000
"""In one answer, of some 200 bytes each: a frame holds 1 MiB."""


def rows(records: Records, viewer: Peer, name: str) -> list[dict[str, Any]]:
    """Where ``name`` (``""``: any module) is served: name, version, server, host, port, key; workers, running,
    waiting, clients.

    By name, then the least load of a worker first, then the fewest clients. Servers that were taken out are left out.
    """
    names = [name] if name else list(records.modules)
    heapify(names)
    found: list[dict[str, Any]] = []
    while names and len(found) < MAX_ROWS:
        served = _served(records, heappop(names))
        least = nsmallest(MAX_ROWS - len(found), served, key=_order)
        found += [_row(module, peer, viewer) for module, peer in least]
    return found


def _served(records: Records, name: str) -> Iterator[tuple[Any, Peer]]:
    for conn, module in records.modules.get(name, {}).items():
        peer = records.peers[conn]
        if module.serving and peer.server is not None and not _taken_out(records, peer):
            yield module, peer


def _order(served: tuple[Any, Peer]) -> tuple[float, int, str]:
    module, peer = served
    return (module.running + module.waiting) / module.workers, module.clients, peer.name


def _taken_out(records: Records, peer: Peer) -> bool:
    """Whether an operator, or the server itself (it is being stopped, say), wants nobody to go there."""
    condition = records.condition(peer)
    return condition is not None and (condition.drained or bool(condition.problem))


def _row(module: Any, peer: Peer, viewer: Peer) -> dict[str, Any]:
    assert peer.server is not None
    host, port = peer.gate or (peer.server.host, peer.server.port)
    return {
        "name": module.name,
        "version": module.version,
        "server": peer.name,
        "host": reachable(host, viewer),
        "port": port,
        "key": peer.deployed_key,
        "workers": module.workers,
        "running": module.running,
        "waiting": module.waiting,
        "clients": module.clients,
    }
