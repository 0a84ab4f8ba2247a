"""What others are shown of a tracker's state: addresses they can reach, and errors that help."""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING

from rpcsys.tracker.records import Peer
from rpcsys.wire.keys import SERVER_PREFIX

if TYPE_CHECKING:
    from rpcsys.tracker.book import Book
    from rpcsys.tracker.labels import Wants

_COMPARED = 200
"""Keys that a misspelt one is compared with: each costs microseconds, and the loop waits meanwhile."""

_PROXY = SERVER_PREFIX + "proxy["


def is_loopback(host: str) -> bool:
    """Whether ``host`` means something else on every machine."""
    return host.startswith("127.") or host in ("::1", "localhost")


def reachable(host: str, viewer: Peer) -> str:
    """``host`` as ``viewer`` can reach it: a server on the tracker's own machine is where the tracker is."""
    if host == viewer.address:
        return host
    return viewer.local if is_loopback(host) and not is_loopback(viewer.address) else host


def is_proxy(peer: Peer) -> bool:
    """Whether a peer is one of TVM's proxies, which offers for servers that it does not tell apart."""
    return (peer.report is not None and peer.report[0].startswith(_PROXY)) or len(peer.serves) > 1


def unknown(book: Book, wants: Wants) -> str:
    """One line for a person who asked for what nobody serves."""
    wait = "Check the {}, or wait for it with wait_for_key=True"
    if wants.labels and (not wants.key or book.known_until(wants.key) is None):
        near = _near_values(book, wants)
        has = "; there are " + near if near else ""
        return f"no server is {wants}{has}. " + wait.format("labels")
    key = wants.key
    some = islice(book.queues.items(), 20 * _COMPARED)
    served = list(islice((name for name, queue in some if queue.servers and name), _COMPARED))
    if not served:
        return f"no server offers {key!r}, nor any other key: start one with `python -m rpcsys.server --key {key} --tracker …`"
    near_keys = difflib.get_close_matches(key, served, n=3) or sorted(served)[:5]
    return f"no server offers {key!r}; there are {', '.join(near_keys)}. " + wait.format("key")


def _near_values(book: Book, wants: Wants) -> str:
    """The values that labels have where the wanted one is nobody's; empty if each has somebody."""
    missing = [pair for pair in sorted(wants.exact) if pair not in book.by_fact and pair[0] != "key"]
    found = []
    for label, value in missing:
        values = [other for name, other in islice(book.by_fact, 20 * _COMPARED) if name == label]
        near = difflib.get_close_matches(value, values[:_COMPARED], n=3) or sorted(values)[:3]
        found += [f"{label}={other}" for other in near]
    return ", ".join(found)


def unknown_server(book: Book, name: str) -> str:
    """One line for a person who named a server that is not there."""
    names = list(islice(book.server_names, 20 * _COMPARED))
    near = difflib.get_close_matches(name, names[:_COMPARED], n=3) or sorted(names)[:3]
    there = f"; there are {', '.join(near)}" if near else ""
    return f"there is no server {name!r}{there}: see the names in query_tracker --json"
