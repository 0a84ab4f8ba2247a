"""The flags of ``rpcsys connect``."""

from __future__ import annotations

import argparse
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rpcsys.errors import ConfigError
from rpcsys.link.address import DEFAULT_TRACKER, host_and_port, parse_tracker
from rpcsys.logs import FORMATS
from rpcsys.serve import Parser, bind, port_number

NAME = "rpcsys-connect"

Address = tuple[str, int]


@dataclass(frozen=True)
class ForwardConfig:
    """Where to listen, and the lab's tracker: None for that of this user's only credential. ``page``: a port, or 0."""

    listen: Address = DEFAULT_TRACKER
    tracker: Address | None = None
    page: int = 0
    silent: bool = False
    log_format: str = "text"


def parse(arguments: Sequence[str] | None = None) -> ForwardConfig:
    """The configuration of a command line. Raises `UsageError`: a flag is wrong."""
    parser = Parser(NAME, description="Let TVM's client, and whatever else speaks no TLS, use a lab from this machine.")
    parser.set_defaults(**vars(ForwardConfig()))
    add = parser.add_argument
    add("--listen", type=_listen, metavar="HOST:PORT",
        help="where TVM_TRACKER_HOST and TVM_TRACKER_PORT point to; port 0 takes any (default: 127.0.0.1:9190)",
    )  # fmt: skip
    add("--tracker", type=_tracker, metavar="HOST:PORT",
        help="the lab's tracker, or its replicas, with commas (default: of your only credential)",
    )  # fmt: skip
    add("--page", type=port_number, metavar="PORT",
        help="show the lab's page and /metrics there, to you on this machine; 0 for none (default: 0)",
    )  # fmt: skip
    add("--silent", action="store_true", help="log warnings and errors only")
    add("--log-format", choices=FORMATS, help="lines for people or JSON")
    return ForwardConfig(**vars(parser.parse_args(arguments)))


def listen(address: Address, flag: str = "--listen") -> socket.socket:
    """The listening socket. Raises `PortRangeError`; `ConfigError`: other machines could reach it there."""
    host, port = address
    listener = bind(host, port, port + 1, flag)
    if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        listener.close()
        raise ConfigError(f"{flag} {host}: other machines could reach it there; give 127.0.0.1:{port}")
    return listener


def _listen(text: str) -> Address:
    return _checked(lambda: host_and_port(text, None, DEFAULT_TRACKER[1]))


def _tracker(text: str) -> Address:
    return _checked(lambda: parse_tracker(text, DEFAULT_TRACKER[1]))


def _checked(parse_text: Callable[[], Address]) -> Address:
    try:
        return parse_text()
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
