"""The proxy's flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rpcsys.link import admission
from rpcsys.link.address import host_and_port
from rpcsys.logs import FORMATS
from rpcsys.serve import Parser, address, end_of_ports, not_empty, number_of, port_end, port_number, seconds, tracker

NAME = "rpcsys-proxy"
_PORTS = 109  # 9090 to 9198

Address = tuple[str, int]


@dataclass(frozen=True)
class ProxyConfig:
    """A proxy's configuration. ``port_end`` is exclusive; ports of 0 are off, except ``port``; times are in seconds.

    ``public``: the proxy's host for clients, None for the address that the tracker sees; ``public_port``: its port for
    clients, 0 for its own. ``next``: another proxy, to which every stream is relayed. ``max_waiting...``: waiting
    streams in all, and of one address. ``lab``: the path of the proxy's credential. ``admit``: networks whose peers are
    served beside the private ones; ``http_open``: networks that see its metrics in a lab, beside its own machine.
    """

    host: str = "0.0.0.0"
    port: int = 9090
    port_end: int = 9199
    web_port: int = 0
    http_port: int = 0
    http_open: tuple[str, ...] = ()
    tracker: Address | None = None
    next: Address | None = None
    public: str | None = None
    public_port: int = 0
    timeout_client: float = 600.0
    timeout_server: float = 600.0
    grace: float = 10.0
    max_waiting: int = 8192
    max_waiting_per_address: int = 2048
    web_origins: tuple[str, ...] = ()
    lab: str | None = None
    admit: tuple[str, ...] = ()
    silent: bool = False
    log_format: str = "text"


def parse(arguments: Sequence[str] | None = None) -> ProxyConfig:
    """The configuration of a command line; exits with 2 on a bad flag. Raises ConfigError: an address is none."""
    parser = _parser()
    flags = parser.parse_args(arguments)
    if flags.tracker and flags.next:
        parser.error("give --tracker or --next: with --next, the other proxy has the tracker")
    if flags.http_open and not (flags.lab and flags.http_port):
        parser.error(admission.HTTP_OPEN_ALONE)
    flags.host, flags.port = host_and_port(flags.host or ProxyConfig.host, flags.port, ProxyConfig.port)
    if flags.public:
        flags.public, flags.public_port = host_and_port(flags.public, None, 0)
    if flags.port_end is None:
        flags.port_end = end_of_ports(flags.port, _PORTS)
    return ProxyConfig(**{**vars(flags), "web_origins": tuple(flags.web_origins)})


def _parser() -> Parser:
    parser = Parser(NAME, description="Join clients with servers that dial out because clients cannot reach them.")
    parser.set_defaults(**{**vars(ProxyConfig()), "port": None, "port_end": None, "web_origins": []})
    add = parser.add_argument
    add("--host", help="address to listen on, also as HOST:PORT (default: %(default)s)")
    add("--port", type=port_number, help="first port to try; 0 takes any free one")
    add("--port-end", type=port_end, help=f"try ports below this one (default: {_PORTS} from --port)")
    add("--web-port", type=port_number, help="port for WebSockets, at /ws (TVM: 8888); 0 is off")
    add("--web-origin", dest="web_origins", action="append", type=_origin, metavar="ORIGIN",
        help="let pages of an origin open WebSockets, as https://lab.example; repeatable (default: its own only)",
    )  # fmt: skip
    add("--http-port", type=port_number, help="/metrics and /healthz; 0 is off")
    add("--http-open", type=admission.flag, metavar="NETWORKS", help=admission.HTTP_OPEN)
    add("--tracker", type=tracker, metavar="HOST:PORT",
        help="register servers there, and relay their links to it; or its replicas, with commas",
    )  # fmt: skip
    add("--next", type=address, metavar="HOST:PORT", help="relay every stream to another proxy")
    where = "the host, or HOST:PORT, at which clients reach this proxy, which the tracker sends them"
    add("--custom-addr", dest="public", metavar="ADDR", help=where)
    for flag, text in (
        ("--timeout-client", "how long a client waits for its server, without a tracker"),
        ("--timeout-server", "how long a server waits for its client, without a tracker"),
        ("--grace", "time for running sessions to end when the proxy stops"),
    ):
        add(flag, type=seconds, metavar="S", help=f"{text} (default: %(default)g)")
    most: dict[str, Any] = {"type": number_of("streams"), "metavar": "N"}
    add("--max-waiting", **most, help="streams that may wait, in all (default: %(default)d)")
    add("--max-waiting-per-address", **most, help="streams of one address that may wait (default: %(default)d)")
    in_lab = "this proxy's credential for the tracker of a lab (rpcsys lab enrol --proxy NAME makes one)"
    add("--lab", type=not_empty, metavar="FILE", help=in_lab)
    add("--admit", type=admission.flag, metavar="NETWORKS", help=admission.HELP)
    add("--silent", action="store_true", help="log warnings and errors only")
    add("--log-format", choices=FORMATS, help="lines for people or JSON")
    return parser


def _origin(text: str) -> str:
    if not re.fullmatch(r"null|[a-z][a-z0-9+.-]*://[^/\s]+", text, re.IGNORECASE):
        raise argparse.ArgumentTypeError(f"{text!r} is no origin: write https://HOST or http://HOST:PORT, and no path")
    return text
