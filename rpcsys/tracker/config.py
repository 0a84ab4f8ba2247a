"""The tracker's flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from rpcsys.logs import FORMATS
from rpcsys.serve import Parser, port_number
from rpcsys.wire.keys import is_key

NAME = "rpcsys-tracker"
_PORTS = 9  # TVM's default range is 9190 to 9198


@dataclass(frozen=True)
class TrackerConfig:
    """How a tracker is started. ``port_end`` is exclusive; ``http_port`` 0 is off; without ``stop_key`` no message
    can end it; ``state_dir`` None remembers nothing beyond the run; ``limits`` is the longest session in seconds,
    by key; ``proxy_from`` are addresses and networks of proxies, none for those on this machine.
    """

    host: str = "0.0.0.0"
    port: int = 9190
    port_end: int = 9199
    http_port: int = 0
    stop_key: str | None = None
    silent: bool = False
    limits: tuple[tuple[str, float], ...] = ()
    state_dir: str | None = None
    history_days: float = 90.0
    log_format: str = "text"
    proxy_from: tuple[str, ...] = ()
    max_connections_per_address: int = 4096


def parse(arguments: Sequence[str] | None = None) -> TrackerConfig:
    """The configuration that the command line asks for; exits with 2 on a bad flag."""
    parser = Parser(NAME, description="Queue requests for devices by key, and match them with servers that are free.")
    parser.add_argument("--host", default=TrackerConfig.host, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=port_number, default=TrackerConfig.port, help="first port to try; 0 takes any free one"
    )
    parser.add_argument(
        "--port-end", type=port_number, help=f"try ports below this one (default: {_PORTS} ports from --port)"
    )
    parser.add_argument(
        "--http-port",
        type=port_number,
        default=0,
        help="a page that shows the lab at /, and /metrics, /healthz, /api/summary; 0 is off",
    )
    parser.add_argument("--stop-key", help="let a message with this key end the tracker, as TVM's protocol has it")
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="remember leases, places in the queue and servers set aside in a file there, across restarts",
    )
    parser.add_argument(
        "--history-days",
        type=_days,
        default=TrackerConfig.history_days,
        metavar="N",
        help="how long the file keeps what is over (default: %(default)g)",
    )
    parser.add_argument(
        "--max-session",
        action="append",
        default=[],
        type=_limit,
        metavar="KEY=SECONDS",
        help="end sessions on devices of KEY after so long, those of TVM's clients too; repeatable",
    )
    parser.add_argument(
        "--proxy-from",
        action="append",
        default=[],
        type=_network,
        metavar="ADDRESS",
        help="believe a proxy there, or in a network such as 10.0.0.0/24, whom it relays; repeatable (default: "
        "proxies on this machine)",
    )
    parser.add_argument(
        "--max-connections-per-address",
        type=_count,
        default=TrackerConfig.max_connections_per_address,
        metavar="N",
        help="connections of one address, half of what the system allows at most; those of proxies that are "
        "believed do not count (default: %(default)d)",
    )
    parser.add_argument("--silent", action="store_true", help="log warnings and errors only")
    parser.add_argument(
        "--log-format", choices=FORMATS, default=TrackerConfig.log_format, help="lines for people or JSON"
    )
    flags = parser.parse_args(arguments)
    return TrackerConfig(
        flags.host,
        flags.port,
        flags.port + _PORTS if flags.port_end is None else flags.port_end,
        flags.http_port,
        flags.stop_key,
        flags.silent,
        tuple(dict(flags.max_session).items()),
        flags.state_dir,
        flags.history_days,
        flags.log_format,
        tuple(flags.proxy_from),
        flags.max_connections_per_address,
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) < 10**8):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of connections")
    return int(text)


def _network(text: str) -> str:
    try:
        return str(ip_network(text, strict=False))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no address: write numbers, as in 10.0.0.5 or 10.0.0.0/24"
        ) from None


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days")
    return days


def _limit(text: str) -> tuple[str, float]:
    """``KEY=SECONDS``. A key may hold colons, and signs of equality too: the last one splits."""
    key, _, number = text.rpartition("=")
    try:
        seconds = float(number)
    except ValueError:
        seconds = 0.0
    if not is_key(key) or not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no limit: write KEY=SECONDS, as in rpi4=600")
    return key, seconds
