"""Which addresses a daemon serves that asks nobody who he is: those of private networks, and what ``--admit`` adds."""

from __future__ import annotations

import argparse
import contextlib
import socket
from typing import NamedTuple, Optional, Tuple

#: Loopback, private and link-local networks (RFC 1918, 6598, 3927, 4193, 4291), and the own machine's addresses.
LOOPBACK = ("127.0.0.0/8", "::1/128")
PRIVATE = (
    *LOOPBACK,
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"),
    *("fc00::/7", "fe80::/10"),
)
ANY = "any"
HTTP_OPEN = "in a lab: networks that see /metrics, beside this machine (10.1.0.0/16, say), or any"
HTTP_OPEN_ALONE = "--http-open needs --lab and --http-port: without a lab, /metrics is open to all"
HELP = "serve peers of these networks, too (203.0.113.0/24, say, commas between), or any; default: private networks"
_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address in IPv6


class Network(NamedTuple):
    """A network: the number of its addresses' bits, and what their first ``length`` bits are."""

    bits: int
    prefix: int
    length: int

    def includes(self, address: bytes) -> bool:
        """Whether an address, as :func:`packed` returns it, is in the network."""
        return (
            len(address) * 8 == self.bits and int.from_bytes(address, "big") >> self.bits - self.length == self.prefix
        )


class Admission:
    """The networks of which a daemon serves addresses: ``base``, and those in ``texts``; "any" is all."""

    def __init__(self, texts: Tuple[str, ...] = (), base: Tuple[str, ...] = PRIVATE) -> None:
        self.any = ANY in texts
        self._networks = [network(text) for text in (*base, *texts) if text != ANY]

    def serves(self, host: str, local: Optional[str] = None) -> bool:
        """Whether a peer at ``host``, which connected to this machine's address ``local``, is served."""
        if self.any or host == local:
            return True
        address = packed(host)
        return address is not None and any(one.includes(address) for one in self._networks)

    def refusal(self, what: str, host: str, local: Optional[str] = None) -> str:
        """Why a peer is not served by ``what`` ("tracker", say), with what its keeper types; empty if it is."""
        if self.serves(host, local):
            return ""
        return (
            f"this {what} serves private networks only, and you come from {host}: "
            f"whoever keeps it lets you in with --admit {host}, or everyone with --admit any"
        )


def packed(host: str) -> Optional[bytes]:
    """The 4 or 16 bytes of an address in digits; None for any other text."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.inet_pton(family, host.partition("%")[0])
    except (OSError, ValueError):
        return None
    return address[len(_MAPPED) :] if address.startswith(_MAPPED) and len(address) == 16 else address


def network_of(address: str) -> str:
    """Whom an address counts for: itself, or the first 64 bits of one in IPv6. The text itself where it is none."""
    found = packed(address)
    return address if found is None or len(found) == 4 else found[:8].hex()


def own_address(sock: socket.socket) -> Optional[str]:
    """The address of this machine that a peer has connected to; None if the peer is gone already, or on no network."""
    with contextlib.suppress(OSError, IndexError):
        return plain(sock.getsockname()[0])
    return None


def plain(address: str) -> str:
    """An address without the prefix that an IPv6 socket adds to IPv4 addresses."""
    return address[7:] if address.startswith("::ffff:") else address


def network(text: str) -> Network:
    """A network such as ``10.0.0.0/8``, or a single address. Raises ValueError: it is none."""
    host, slash, length = text.partition("/")
    address = packed(host)
    if address is None or (slash and not (length.isascii() and length.isdigit() and len(length) < 4)):
        raise ValueError(text)
    bits = len(address) * 8
    kept = int(length) if slash else bits
    if kept > bits:
        raise ValueError(text)
    return Network(bits, int.from_bytes(address, "big") >> bits - kept, kept)


def flag(text: str) -> Tuple[str, ...]:
    """The value of ``--admit``: networks with commas between, or "any". Raises `argparse.ArgumentTypeError`."""
    texts = tuple(text.split(","))
    for one in texts:
        try:
            if one != ANY:
                network(one)
        except ValueError:
            problem = f"{one!r} is no network: write numbers, as in 203.0.113.0/24, or any"
            raise argparse.ArgumentTypeError(problem) from None
    return texts
