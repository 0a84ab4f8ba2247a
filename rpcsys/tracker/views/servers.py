"""A server, as it is shown: to those who wait, in summaries, on the page and to Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rpcsys.tracker.addresses import reachable
from rpcsys.tracker.server_states import HEALTHY, OK, UNHEALTHY
from rpcsys.tracker.views import leases
from rpcsys.wire.keys import SERVER_PREFIX

if TYPE_CHECKING:
    from rpcsys.tracker.entities import Peer
    from rpcsys.tracker.records import Records


def health(records: Records, at: float, peer: Peer) -> dict[str, Any]:
    """What is wrong with a server: ``state``, ``reason`` and ``until_s`` of it."""
    condition = records.condition(peer)
    if condition is None:
        return {"state": OK.value, "reason": "", "until_s": None}
    until_s = None if condition.until is None else round(max(0.0, condition.until - at), 3)
    reason = condition.problem if condition.state is UNHEALTHY else condition.reason
    return {"state": condition.state.value, "reason": reason, "until_s": until_s}


def word(peer: Peer, state: str) -> str:
    """A server's state in a word: what is wrong with it, or whether somebody has it."""
    if state not in HEALTHY:
        return state
    if peer.serving:
        return "busy" if len(peer.serving) >= peer.slots else "partly busy"
    return "free" if peer.offers else "preparing"


def brief(records: Records, at: float, peer: Peer) -> dict[str, Any]:
    """For those who wait."""
    return {"server": peer.name, "slots": peer.slots, "free": _free(peer), **health(records, at, peer)}


def _free(peer: Peer) -> int:
    return sum(offer.free for offer in peer.offers.values())


def slots(peer: Peer, viewer: Peer) -> list[dict[str, Any]]:
    """A server's rows: one for each slot, as far as it is known."""
    if peer.server is not None:
        place = [reachable(peer.server.host, viewer), peer.server.port]
        return [{"key": SERVER_PREFIX + peer.server.key, "addr": place}] * peer.server.slots
    if peer.report is not None and peer.report[0].startswith("server"):
        name, host, port = peer.report
        return [{"key": name, "addr": [reachable(host, viewer), port]}]
    return []


def row(records: Records, at: float, peer: Peer, viewer: Peer) -> dict[str, Any]:
    """A row of the summary."""
    shown: dict[str, Any] = {"name": peer.name, "free": _free(peer), **health(records, at, peer)}
    server = peer.server
    if server is None:
        assert peer.report is not None
        _, host, port = peer.report
        return {
            **shown,
            "key": ",".join(peer.serves),
            "address": reachable(host, viewer),
            "port": port,
            "slots": peer.slots,
            "running": len(peer.serving),
            "labels": {},
            "loads": [],
            "limits": False,
        }
    return {
        **shown,
        "key": server.key,
        "address": reachable(server.host, viewer),
        "port": server.port,
        "slots": server.slots,
        "running": sum(lease.opened for lease in peer.serving.values()),
        "labels": server.labels,
        "loads": list(server.loads),
        "limits": True,
    }


def on_page(records: Records, at: float, peer: Peer) -> dict[str, Any]:
    """As the page shows it, with its leases: times are seconds since 1970."""
    known = health(records, at, peer)
    until_s = known["until_s"]
    return {
        "name": peer.name,
        "key": ",".join(peer.serves),
        "state": word(peer, known["state"]),
        "reason": known["reason"],
        "until": None if until_s is None else at + until_s,
        "slots": peer.slots,
        "address": peer.address if peer.server is None else peer.server.host,
        "labels": {} if peer.server is None else peer.server.labels,
        "leases": [leases.on_page(lease) for lease in peer.serving.values()],
    }
