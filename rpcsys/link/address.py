"""Parses addresses; the tracker's default address, and the addresses of one with replicas."""

from __future__ import annotations

import os
from typing import Callable, Optional, Sequence, Tuple

from rpcsys.errors import ConfigError

DEFAULT_TRACKER = ("127.0.0.1", 9190)


class Addresses(Tuple[str, int]):  # noqa: SLOT001 (a tuple has none)
    """The addresses of a tracker with replicas, ``all`` of them. As a pair, it is the first one.

    So what knows one address alone works, too: each replica leads to the one that leads.
    """

    all: Tuple[Tuple[str, int], ...]

    def __new__(cls, found: Sequence[Tuple[str, int]]) -> Addresses:
        made = super().__new__(cls, found[0])
        made.all = tuple(found)
        return made


def parse_address(text: str, default_port: Optional[int] = None) -> Tuple[str, int]:
    """Parse ``"host:port"``, ``"[::1]:9190"``, or a host alone if there is a ``default_port``.

    Raises ConfigError: no host, no port, or a port outside 1 to 65535.
    """
    host, port = split_address(text)
    if port is None and default_port is not None:
        port = str(default_port)
    if port is None or not _is_port(port):
        raise _no_address(text)
    return host, int(port)


def parse_tracker(text: str, default_port: Optional[int] = None) -> Tuple[str, int]:
    """Parse the address of a tracker, or those of its replicas with commas between: `Addresses`, if they are several.

    Raises ConfigError, as `parse_address`.
    """
    if "," not in text:
        return parse_address(text, default_port)
    return several([parse_address(each.strip(), default_port) for each in text.split(",")])


def several(found: Sequence[Tuple[str, int]]) -> Tuple[str, int]:
    """`Addresses`, or the only one that is found."""
    known = tuple(dict.fromkeys(found))
    return known[0] if len(known) == 1 else Addresses(known)


def each_address(tracker: Tuple[str, int]) -> Tuple[Tuple[str, int], ...]:
    """The addresses of a tracker: of each replica, or the only one."""
    return tracker.all if isinstance(tracker, Addresses) else (tracker,)


def tracker_text(tracker: Tuple[str, int]) -> str:
    """``"10.0.0.1:9190,10.0.0.2:9190"``, as `parse_tracker` reads it."""
    return ",".join(address_text(*each) for each in each_address(tracker))


def split_address(text: str) -> Tuple[str, Optional[str]]:
    """The host in ``text``, and its port as it is written; None where it has none.

    Raises ConfigError: no host, or digits in its place: the system would take 9190 for the host 0.0.35.230.
    """
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not bracket or colon not in ("", ":"):
            raise _no_address(text)
    elif text.count(":") > 1:  # a bare IPv6 address
        host, colon, port = text, "", ""
    else:
        host, colon, port = text.partition(":")
    if not host:
        raise _no_address(text)
    if _is_digits(host):
        raise _no_host(text, host, port)
    return host, port if colon else None


def host_and_port(host: str, port: Optional[int], default_port: int) -> Tuple[str, int]:
    """The address of a ``host`` that may be HOST:PORT, and of a ``port`` that is given apart (None: it is not).

    The port may be 0. Raises ConfigError: no address, or two ports that differ.
    """
    name, own = split_address(host)
    if own is None:
        return name, default_port if port is None else port
    if not _is_port(own) and own != "0":
        raise _no_address(host)
    if port not in (None, int(own)):
        raise ConfigError(f"{host} has another port than {port}, which is given apart: give the port once")
    return name, int(own)


def _no_address(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is no address: write HOST:PORT, as in 10.0.0.1:9190 or [::1]:9190")


def _no_host(text: str, host: str, port: str) -> ConfigError:
    port = port or host
    return ConfigError(f"{text!r} has no host: write HOST:{port if _is_port(port) else 'PORT'}, as in 10.0.0.1:9190")


def address_text(host: str, port: int) -> str:
    """``"10.0.0.1:9190"`` or ``"[::1]:9190"``, as `parse_address` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tracker_defaults() -> Tuple[str, int]:
    """The tracker's default address: ``RPCSYS_TRACKER`` (HOST:PORT, several with commas between), else
    ``RPCSYS_TRACKER_HOST`` and ``_PORT``, TVM's ``TVM_TRACKER_…``, or 127.0.0.1:9190.

    Raises ConfigError: a variable holds no address, or no port.
    """
    host, port = DEFAULT_TRACKER
    whole = os.environ.get("RPCSYS_TRACKER")
    if whole:
        return _of_variable("RPCSYS_TRACKER", whole, port, parse_tracker)
    for prefix in ("TVM_TRACKER", "RPCSYS_TRACKER"):
        named = os.environ.get(prefix + "_HOST")
        if named:
            host, port = _of_variable(prefix + "_HOST", named, port)
        text = os.environ.get(prefix + "_PORT")
        if text:
            if not _is_port(text):
                raise ConfigError(f"{prefix}_PORT={text!r} is no port (1 to 65535)")
            port = int(text)
    return host, port


def _of_variable(
    name: str, text: str, default_port: int, parse: Callable[[str, Optional[int]], Tuple[str, int]] = parse_address
) -> Tuple[str, int]:
    try:
        return parse(text, default_port)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _is_port(text: str) -> bool:
    return _is_digits(text) and 0 < int(text[:6]) < 65536


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
