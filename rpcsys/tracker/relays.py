"""Who may say of a connection that it is another's: the proxies that the tracker was told of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from rpcsys.tracker.addresses import is_loopback


@dataclass(frozen=True)
class Relays:
    """Networks in which proxies are; none stands for the tracker's own machine."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> Relays:
        """From addresses and networks (``10.0.0.0/8``) as people write them.

        Raises
        ------
        ValueError: one of them is neither.
        """
        return cls(tuple(ip_network(text, strict=False) for text in texts))

    def include(self, address: str, local: str) -> bool:
        """Whether a proxy may be at ``address``, which reached the tracker at ``local``."""
        if not self.networks:
            return is_loopback(address) or address == local
        try:
            found = ip_address(address)
        except ValueError:  # a proxy may call its peer what it likes
            return False
        return any(found in network for network in self.networks)
