"""A lease, a server and a deployed module as JSON, for waiting clients, summaries, pages and Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any

from rpcsys.tracker.transitions import AWAY, HEALTHY, INFERRED, OK, OURS, UNHEALTHY
from rpcsys.wire.control import DeployedModule
from rpcsys.wire.keys import SERVER_PREFIX

if TYPE_CHECKING:
    from rpcsys.tracker.entities import Condition, GoneServer, LeaseRecord, Peer
    from rpcsys.tracker.lab_view import LabView
    from rpcsys.tracker.records import Records

MAX_HOLDERS = 8  # holders in a position event; the summary has all
IN_USE = frozenset(("free", "busy", "partly busy", "preparing"))  # what `state_word` says of servers that are offered
MAX_MODULES = 2000  # in one answer, of some 200 bytes each: a frame holds 1 MiB

# Leases.


def holders(leases: Iterable[LeaseRecord], at: float, most: int = MAX_HOLDERS) -> list[dict[str, Any]]:
    """The holders of the first ``most`` leases."""
    return [_holder(lease, at) for lease in islice(leases, most)]


def _holder(lease: LeaseRecord, at: float) -> dict[str, Any]:
    """The holder of a device, the seconds since the grant, and the most seconds left (None: no limit)."""
    until = lease.until
    return {
        "user": lease.user,
        "address": lease.address,
        "server": lease.server_name,
        "since_s": round(at - lease.since, 3),
        "until_s": None if until is None else round(max(0.0, until - at), 3),
        "inferred": lease.how == INFERRED,
    }


def lease_row(lease: LeaseRecord, at: float) -> dict[str, Any]:
    """A lease's row of the summary."""
    state = lease.state.value if lease.how == OURS else lease.how
    held = _holder(lease, at)
    return {
        "lease": lease.lease,
        "key": lease.key,
        "server": lease.server_name,
        "holder": lease.user,
        "address": lease.address,
        "since_s": held["since_s"],
        "until_s": held["until_s"],
        "limit_s": lease.limit_s,
        "state": "server away" if lease.state in AWAY else state,
    }


def lease_on_page(lease: LeaseRecord) -> dict[str, Any]:
    """A lease on the page; times are seconds since 1970."""
    return {
        "lease": lease.lease,
        "key": lease.key,
        "user": lease.user,
        "address": lease.address,
        "since": lease.since,
        "until": lease.until,
        "how": lease.how,
        "running": lease.opened,
    }


# Servers.


def health(records: Records, at: float, peer: Peer) -> dict[str, Any]:
    """A server's health: ``state``, ``reason``, and ``until_s``, the seconds until a pause ends."""
    condition = records.condition(peer)
    if condition is None:
        return {"state": OK.value, "reason": "", "until_s": None}
    until_s = None if condition.until is None else round(max(0.0, condition.until - at), 3)
    return {"state": condition.state.value, "reason": _reason(condition), "until_s": until_s}


def _reason(condition: Condition) -> str:
    if condition.drained:
        return condition.drained_by and f"by {condition.drained_by}"
    return condition.problem if condition.state is UNHEALTHY else condition.reason


def speed(records: Records, peer: Peer) -> dict[str, str]:
    """What a server's canary says of its speed: ``ok`` or ``slow``, "" while that is not known; and why it is slow."""
    board = records.speeds.get(peer.name) if peer.name else None
    return {"speed": "", "slow": ""} if board is None else {"speed": board.state.value, "slow": board.reason}


def state_word(peer: Peer, state: str) -> str:
    """A server's state in a word: its health, or whether it is free or busy."""
    if state not in HEALTHY:
        return state
    if peer.serving:
        return "busy" if len(peer.serving) >= peer.slots else "partly busy"
    return "free" if peer.offers else "preparing"


def server_brief(records: Records, at: float, peer: Peer) -> dict[str, Any]:
    """A server for waiting clients."""
    free = sum(offer.free for offer in peer.offers.values())
    return {"server": peer.name, "slots": peer.slots, "free": free, **health(records, at, peer)}


def slots(peer: Peer, viewer: Peer) -> list[dict[str, Any]]:
    """A server's rows in TVM's summary: one for each slot; for a TVM server, one in all."""
    if peer.server is not None:
        place = [viewer.sees(peer.server.host), peer.server.port]
        return [{"key": SERVER_PREFIX + peer.server.key, "addr": place}] * peer.server.slots
    if peer.report is not None and peer.report[0].startswith("server"):
        name, host, port = peer.report
        return [{"key": name, "addr": [viewer.sees(host), port]}]
    return []


def server_row(records: Records, at: float, peer: Peer, viewer: Peer) -> dict[str, Any]:
    """A server's row of the summary."""
    server = peer.server
    host, port = (peer.report or ("", "", 0))[1:] if server is None else (server.host, server.port)
    brief = server_brief(records, at, peer)
    return {
        "name": brief.pop("server"),
        **brief,
        "key": ",".join(peer.serves) if server is None else server.key,
        "address": viewer.sees(host),
        "port": port,
        "running": sum(lease.opened or server is None for lease in peer.serving.values()),
        "labels": {} if server is None else server.labels,
        "loads": [] if server is None else list(server.loads),
        "devices": [] if server is None else list(server.devices),
        "limits": server is not None,
        **speed(records, peer),
        "since_s": round(max(0.0, at - _since(records, peer)), 3),
    }


def _since(records: Records, peer: Peer) -> float:
    condition = records.condition(peer)
    if condition is not None and not condition.open:
        return condition.since
    return max((lease.since for lease in peer.serving.values()), default=peer.since or records.started_at)


def gone_row(name: str, gone: GoneServer, at: float) -> dict[str, Any]:
    """The row of a server that is gone."""
    return {"name": name, "key": gone.key, "since_s": round(max(0.0, at - gone.since), 3), "reason": gone.reason}


def clear_row(lab: LabView, peer: Peer) -> dict[str, Any]:
    """The row of a peer that is in no lab; ``allowed``: whether it would be served if the lab were closed."""
    allowed = lab.access.admits_tvm(peer.address)
    return {"address": peer.address, "user": peer.user, "server": peer.name, "allowed": allowed}


def gone_on_page(name: str, gone: GoneServer) -> dict[str, Any]:
    """A server that is gone on the page; times are seconds since 1970."""
    return {"name": name, "key": gone.key, "since": gone.since, "reason": gone.reason}


def server_on_page(records: Records, at: float, peer: Peer) -> dict[str, Any]:
    """A server with its leases on the page; times are seconds since 1970."""
    known = health(records, at, peer)
    condition = records.condition(peer)
    return {
        "name": peer.name,
        "key": ",".join(peer.serves),
        "state": state_word(peer, known["state"]),
        "reason": known["reason"],
        **speed(records, peer),
        "since": _since(records, peer),
        "until": None if condition is None else condition.until,
        "slots": peer.slots,
        "address": peer.address if peer.server is None else peer.server.host,
        "labels": {} if peer.server is None else peer.server.labels,
        "devices": [] if peer.server is None else list(peer.server.devices),
        "leases": [lease_on_page(lease) for lease in peer.serving.values()],
    }


# Deployed modules.


def modules(records: Records, viewer: Peer, name: str) -> list[dict[str, Any]]:
    """Where ``name`` (``""``: any module) is served, sorted by name, load and number of clients."""
    names = [name] if name else list(records.modules)
    heapify(names)
    found: list[dict[str, Any]] = []
    while names and len(found) < MAX_MODULES:
        least = nsmallest(MAX_MODULES - len(found), _served(records, heappop(names)), key=_load)
        found += [_module_row(module, peer, viewer) for module, peer in least]
    return found


def _served(records: Records, name: str) -> Iterator[tuple[DeployedModule, Peer]]:
    for conn, module in records.modules.get(name, {}).items():
        peer = records.peers[conn]
        condition = records.condition(peer)
        taken_out = condition is not None and (condition.drained or condition.problem)
        if module.serving and peer.server is not None and not taken_out:
            yield module, peer


def _load(served: tuple[DeployedModule, Peer]) -> tuple[float, int, str]:
    module, peer = served
    return (module.running + module.waiting) / module.workers, module.clients, peer.name


def _module_row(module: DeployedModule, peer: Peer, viewer: Peer) -> dict[str, Any]:
    return {
        "name": module.name,
        "version": module.version,
        "server": peer.name,
        **peer.for_modules(viewer),
        "workers": module.workers,
        "running": module.running,
        "waiting": module.waiting,
        "clients": module.clients,
    }
