"""Addresses: which every machine has, and in which networks proxies are believed whom they relay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network


def is_loopback(host: str) -> bool:
    """Whether ``host`` means something else on every machine."""
    return host.startswith("127.") or host in ("::1", "localhost")


def plain(address: str) -> str:
    """An IPv4 address that comes through an IPv6 socket, as people write it."""
    return address.removeprefix("::ffff:")


@dataclass(frozen=True)
class ProxyNetworks:
    """Networks in which proxies are believed; none stands for the tracker's own machine."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> ProxyNetworks:
        """From addresses and networks (``10.0.0.0/8``) as people write them. Raises `ValueError`: one is neither."""
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
