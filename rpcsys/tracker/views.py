"""What others are shown of a tracker's state: summaries, addresses they can reach, and errors that help."""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING, Any

from rpcsys.tracker.records import Peer
from rpcsys.wire.keys import SERVER_PREFIX

if TYPE_CHECKING:
    from rpcsys.tracker.book import Book

_COMPARED = 200
"""Keys that a misspelt one is compared with: each costs microseconds, and the loop waits meanwhile."""


def is_loopback(host: str) -> bool:
    """Whether ``host`` means something else on every machine."""
    return host.startswith("127.") or host in ("::1", "localhost")


def reachable(host: str, viewer: Peer) -> str:
    """``host`` as ``viewer`` can reach it: a server on the tracker's own machine is where the tracker is."""
    return viewer.local if is_loopback(host) and not is_loopback(viewer.address) else host


def tvm_summary(book: Book, viewer: Peer) -> dict[str, Any]:
    """What TVM's tools expect: free and pending by key, and a row for each slot of each server."""
    queues = {
        key: {"free": len(queue.offers), "pending": len(queue.waiting)}
        for key, queue in book.queues.items()
        if queue.servers or queue.waiting
    }
    rows = []
    for peer in book.peers.values():
        if peer.server is not None:
            place = [reachable(peer.server.host, viewer), peer.server.port]
            row = {"key": SERVER_PREFIX + peer.server.key, "addr": place}
            rows += [row] * peer.server.slots
        elif peer.report is not None and peer.report[0].startswith("server"):
            name, host, port = peer.report
            rows.append({"key": name, "addr": [reachable(host, viewer), port]})
    return {"queue_info": queues, "server_info": rows}


def summary(book: Book, at: float, viewer: Peer) -> dict[str, Any]:
    """TVM's summary, with our servers by name and the leases that are out."""
    servers = [_server(peer, viewer) for peer in book.peers.values() if peer.server is not None]
    leases = [
        {
            "lease": lease.lease,
            "key": lease.key,
            "server": lease.server_name,
            "holder": lease.user,
            "address": lease.address,
            "since_s": round(at - lease.since, 3),
            "limit_s": lease.limit_s,
            "state": "running" if lease.started else "granted",
        }
        for lease in book.leases.values()
    ]
    return {**tvm_summary(book, viewer), "servers": servers, "leases": leases}


def _server(peer: Peer, viewer: Peer) -> dict[str, Any]:
    server = peer.server
    assert server is not None
    return {
        "name": server.name,
        "key": server.key,
        "address": reachable(server.host, viewer),
        "port": server.port,
        "slots": server.slots,
        "free": len(peer.offers),
        "running": sum(lease.started for lease in peer.serving.values()),
        "labels": server.labels,
        "loads": list(server.loads),
    }


def unknown_key(book: Book, key: str) -> str:
    """One line for a person who asked for a key that nobody serves."""
    served = list(islice((name for name, queue in book.queues.items() if queue.servers), _COMPARED))
    if not served:
        return f"no server offers {key!r}, nor any other key: start one with `python -m rpcsys.server --key {key} --tracker …`"
    near = difflib.get_close_matches(key, served, n=3) or sorted(served)[:5]
    return f"no server offers {key!r}; there are {', '.join(near)}. Check the key, or wait for it with wait_for_key=True"
