"""IP addresses: loopback, and the networks of trusted proxies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network


def is_loopback(host: str) -> bool:
    """Whether ``host`` is each machine's own address."""
    return host.startswith("127.") or host in ("::1", "localhost")


@dataclass(frozen=True)
class ProxyNetworks:
    """Networks of trusted proxies; empty: the tracker's own machine."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> ProxyNetworks:
        """Parse addresses and networks such as ``10.0.0.0/8``. Raises `ValueError`."""
        return cls(tuple(ip_network(text, strict=False) for text in texts))

    def include(self, address: str, local: str) -> bool:
        """Whether a proxy at ``address``, which connected to the tracker's address ``local``, is trusted."""
        if not self.networks:
            return is_loopback(address) or address == local
        try:
            found = ip_address(address)
        except ValueError:  # a proxy may send any text as its peer's address
            return False
        return any(found in network for network in self.networks)
