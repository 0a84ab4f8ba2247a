"""The tracker's flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from rpcsys.errors import ConfigError
from rpcsys.link import admission
from rpcsys.link.address import DEFAULT_TRACKER, host_and_port, parse_tracker
from rpcsys.logs import FORMATS
from rpcsys.serve import Parser, end_of_ports, not_empty, number_of, port_end, port_number
from rpcsys.tracker.webhook_events import WebhookKind
from rpcsys.wire.keys import is_key

NAME = "rpcsys-tracker"
_SITE, _ANY_SITE = re.compile("[A-Za-z0-9_-]{1,32}"), "any"
_PORTS = 9  # TVM's default range is 9190 to 9198


@dataclass(frozen=True)
class TrackerConfig:
    """How a tracker is started."""

    host: str = "0.0.0.0"
    port: int = 9190
    port_end: int = 9199  # exclusive
    http_port: int = 0  # 0 is off
    http_cert: str | None = None  # files of the page's certificate and its key, which may be in one
    http_key: str | None = None
    stop_key: str | None = None  # None: no message can stop the tracker
    silent: bool = False
    limits: tuple[tuple[str, float], ...] = ()  # key, and its longest session in seconds
    state_dir: str | None = None  # None: nothing is kept across restarts
    history_days: float = 90.0
    log_format: str = "text"
    proxy_from: tuple[str, ...] = ()  # addresses and networks of trusted proxies; empty: this machine
    max_connections_per_address: int = 4096
    lab: str | None = None  # the folder of the lab that the tracker serves
    canary_action: str = "mark"  # or "aside": what becomes of boards that their canaries find slow
    admit: tuple[str, ...] = ()  # networks whose peers are served beside the private ones
    replicate: str | None = None  # where the engine is that the replicas of this tracker share; None: it has none
    replicate_ca: str | None = None  # PEM files for TLS to the engine: who has signed its certificates,
    replicate_cert: str | None = None  # this tracker's own one,
    replicate_key: str | None = None  # and its key
    advertise: str | None = None  # this tracker's HOST or HOST:PORT for its replicas and their peers
    site: str | None = None  # the name of this tracker's site; None: it knows no others
    peers: tuple[tuple[str, tuple[str, int]], ...] = ()  # the other sites, with the addresses of their trackers
    webhooks: tuple[str, ...] = ()  # URLs that are told of what happens
    webhook_secret: str | None = None  # the file with what signs these messages; None: they are not signed
    webhook_events: tuple[str, ...] = ()  # what they are told of (`rpcsys.tracker.webhook_events`); empty: all


def parse(arguments: Sequence[str] | None = None) -> TrackerConfig:
    """Read the command line; exits with status 2 on a bad flag. Raises ConfigError: ``--host`` is no address."""
    parser = Parser(NAME, description="Queue requests for devices by key, and match them with free servers.")
    add = parser.add_argument
    add("--host", help="address to listen on, also as HOST:PORT (default: %(default)s)")
    add("--port", type=port_number, help="first port to try; 0 takes any free one")
    add("--port-end", type=port_end, help=f"try ports below this one (default: {_PORTS} ports from --port)")
    pages = "serve a page of the lab at /, and /metrics, /healthz, /api/summary; 0 is off"
    add("--http-port", type=port_number, help=pages)
    files: dict[str, Any] = {"type": not_empty, "metavar": "FILE"}
    add("--http-cert", **files, help="serve these over HTTPS too, with this certificate (PEM), also after its renewal")
    add("--http-key", **files, help="its key (default: in the certificate's file)")
    add("--stop-key", help="stop the tracker on a message with this key, as TVM's protocol has it")
    remember = "keep leases, places in the queue and servers set aside in a file there, across restarts"
    add("--state-dir", type=not_empty, metavar="DIR", help=remember)
    add("--history-days", type=_days, metavar="N", help="how long the file keeps its history (default: %(default)g)")
    longest = "end sessions on devices of KEY after SECONDS, those of TVM's clients too; repeatable"
    add("--max-session", dest="limits", action="append", type=_limit, metavar="KEY=SECONDS", help=longest)
    trusted = "trust the client addresses that a proxy there sends; a network such as 10.0.0.0/24 works too; repeatable"
    trusted += " (default: proxies on this machine)"
    add("--proxy-from", action="append", type=_network, metavar="ADDRESS", help=trusted)
    most = "connections of one address, at most half of the system's limit; those of trusted proxies"
    most += " do not count (default: %(default)d)"
    add("--max-connections-per-address", type=number_of("connections"), metavar="N", help=most)
    add("--admit", type=admission.flag, metavar="NETWORKS", help=admission.HELP)
    closed = "serve the lab in DIR: its members alone, inside TLS (rpcsys lab init makes one)"
    add("--lab", type=not_empty, metavar="DIR", help=closed)
    shared = "be one of several trackers that share an etcd: the others take over (docs/replicas.md)"
    add("--replicate", type=not_empty, metavar="etcd://HOST:PORT,…/LAB", help=shared)
    add("--replicate-ca", **files, help="speak TLS to etcd, with certificates that this one (PEM) has signed")
    add("--replicate-cert", **files, help="this tracker's certificate for etcd")
    add("--replicate-key", **files, help="its key (default: in the certificate's file)")
    add("--advertise", type=not_empty, metavar="HOST", help="where the other trackers, clients and servers reach this")
    own = "the name of this tracker's site, whose clients may ask other sites, too (docs/sites.md)"
    add("--site", type=_site, metavar="NAME", help=own)
    other = "the tracker of another site, or all of its replicas; each names the other; repeatable"
    add("--peer", dest="peers", action="append", type=_peer, metavar="NAME=HOST:PORT,…", help=other)
    slow = (
        "what becomes of a board that its canary finds slow: it has a label, or is not offered (default: %(default)s)"
    )
    add("--canary-action", choices=("mark", "aside"), help=slow)
    told = "POST what goes wrong with leases and boards to this URL (docs/webhooks.md); repeatable"
    add("--webhook", dest="webhooks", action="append", type=_webhook, metavar="URL", help=told)
    add("--webhook-secret", **files, help="sign these messages with the secret in this file (Standard Webhooks)")
    kinds = f"send these alone, with commas between: {', '.join(WebhookKind)} (default: all)"
    add("--webhook-events", type=_webhook_events, metavar="NAMES", help=kinds)
    add("--silent", action="store_true", help="log warnings and errors only")
    add("--log-format", choices=FORMATS, help="lines for people or JSON")
    several: dict[str, Any] = {"limits": [], "proxy_from": [], "peers": [], "webhooks": []}
    parser.set_defaults(**{**vars(TrackerConfig()), "port": None, "port_end": None, **several})
    flags = vars(parser.parse_args(arguments))
    default = TrackerConfig()
    flags["host"], flags["port"] = host_and_port(flags["host"] or default.host, flags["port"], default.port)
    flags["limits"] = tuple(dict(flags["limits"]).items())
    flags["proxy_from"], flags["peers"] = tuple(flags["proxy_from"]), tuple(flags["peers"])
    if flags["lab"] is not None and flags["stop_key"] is not None:
        parser.error("--stop-key is no secret (ps shows it): the tracker of a lab is stopped by a signal")
    if flags["http_key"] is not None and flags["http_cert"] is None:
        parser.error("--http-key is that of a certificate: give --http-cert FILE, too")
    if flags["http_cert"] is not None and not flags["http_port"]:
        parser.error("--http-cert is for the page: give --http-port N, too")
    flags["webhooks"] = tuple(dict.fromkeys(flags["webhooks"]))
    if not flags["webhooks"] and (flags["webhook_secret"] is not None or flags["webhook_events"]):
        parser.error("--webhook-secret and --webhook-events are for webhooks: give --webhook URL, too")
    _check_replicas(parser, flags)
    _check_sites(parser, flags)
    if flags["port_end"] is None:
        flags["port_end"] = end_of_ports(flags["port"], _PORTS)
    return TrackerConfig(**flags)


def _check_replicas(parser: Parser, flags: dict[str, Any]) -> None:
    own = ("replicate_ca", "replicate_cert", "replicate_key", "advertise")
    alone = next((name for name in own if flags[name] is not None), None)
    if flags["replicate"] is None:
        if alone is not None:
            parser.error(f"--{alone.replace('_', '-')} is for a tracker with replicas: give --replicate, too")
        return
    if flags["state_dir"] is None:
        parser.error("a tracker with replicas keeps its history itself: give --state-dir DIR, too")
    if flags["lab"] is not None:
        parser.error("a closed lab has one tracker: its members' secrets are in the folder of --lab, on one machine")


def _check_sites(parser: Parser, flags: dict[str, Any]) -> None:
    peers = [site for site, _ in flags["peers"]]
    if flags["site"] is None:
        if peers:
            parser.error("--peer is for a tracker whose site has a name: give --site NAME, too")
        return
    if flags["lab"] is not None:
        parser.error("the members of a closed lab are known to its own tracker alone: --site is for open ones")
    if len({flags["site"], *peers}) <= len(peers):
        parser.error("two sites have one name: each --peer is another site than --site, and than the other peers")


def _site(text: str) -> str:
    if not _SITE.fullmatch(text) or text == _ANY_SITE:
        problem = f"{text!r} is no name of a site: 1 to 32 letters, digits, dashes and underscores, and not {_ANY_SITE}"
        raise argparse.ArgumentTypeError(problem)
    return text


def _peer(text: str) -> tuple[str, tuple[str, int]]:
    name, _, addresses = text.partition("=")
    try:
        return _site(name), parse_tracker(addresses, DEFAULT_TRACKER[1])
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{error} (NAME=HOST:PORT)") from None


def _webhook(text: str) -> str:
    problem = "write it as in https://chat.example/hook"
    try:
        url = urlsplit(text)
        known = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:  # a port that is no number, or brackets that do not end
        known = ""
    if known and url.username is not None:
        known, problem = "", "leave out user and password: the process list shows them"
    if not known or url.fragment or not (text.isascii() and text.isprintable()) or " " in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL of a webhook: {problem}")
    return text


def _webhook_events(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in set(WebhookKind):
            raise argparse.ArgumentTypeError(f"{name!r} is no event: there are {', '.join(WebhookKind)}")
    return names


def _network(text: str) -> str:
    try:
        return str(ip_network(text, strict=False))
    except ValueError:
        problem = f"{text!r} is no address: write numbers, as in 10.0.0.5 or 10.0.0.0/24"
        raise argparse.ArgumentTypeError(problem) from None


def _days(text: str) -> float:
    days = _positive(text, below=1e6)
    if not days:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days")
    return days


def _limit(text: str) -> tuple[str, float]:
    key, _, number = text.rpartition("=")  # a key may contain "="
    seconds = _positive(number, below=1e9)
    if not is_key(key) or not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is no limit: write KEY=SECONDS, as in rpi4=600")
    return key, seconds


def _positive(text: str, below: float) -> float:
    """A number between 0 and ``below``; 0 for any other text."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 < number < below else 0.0
