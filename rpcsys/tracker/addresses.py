"""Addresses as others can reach them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpcsys.wire.keys import SERVER_PREFIX

if TYPE_CHECKING:
    from rpcsys.tracker.entities import Peer

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
