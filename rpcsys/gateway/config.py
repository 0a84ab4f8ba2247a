"""The gateway's flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rpcsys.gateway.calls import Batching
from rpcsys.gateway.memory import quarter_of_the_machine
from rpcsys.gateway.settings import QUEUE
from rpcsys.link import admission
from rpcsys.link.address import host_and_port, tracker_defaults
from rpcsys.logs import FORMATS
from rpcsys.serve import Parser, address, end_of_ports, not_empty, number_of, port_end, port_number, seconds, tracker

NAME = "rpcsys-gateway"
_PORTS = 100  # 8000 to 8099
#: Where gRPC is served unless said otherwise: the first port of these that is free.
GRPC_PORT, GRPC_PORT_END = 8001, 8100
_BATCH = re.compile(r"([^=]+)=([0-9]{1,6})(?::([0-9]{1,9}))?")
_POOL = re.compile(r"([^=]+)=([^:]+):(.+?)(?::([0-9]{1,4}))?")
_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)B?", re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}

Address = tuple[str, int]


class PoolFlag(NamedTuple):
    """A model on leased devices: its file, the devices' key, how many of them at most."""

    key: str
    file: str
    most: int


@dataclass(frozen=True)
class GatewayConfig:
    """A gateway's configuration. ``port_end`` is exclusive; ports of 0 are off, except ``port``; times in seconds.

    ``keys``: the standing keys of ``servers``, one for each; empty for none. ``grpc_port``: None for the first free one
    where grpcio is installed. ``max_body``, ``max_json``, ``memory``: in bytes. ``admit``: networks whose clients are
    served beside the private ones.
    """

    host: str = "0.0.0.0"
    port: int = 8000
    port_end: int = 8100
    grpc_port: int | None = None
    http_port: int = 0
    reuse_port: bool = False
    tracker: Address | None = None
    servers: tuple[Address, ...] = ()
    keys: tuple[str, ...] = field(default=(), repr=False)
    modules: tuple[str, ...] = ()
    batches: Mapping[str, Batching] = field(default_factory=dict)
    queue: int = QUEUE
    pools: Mapping[str, PoolFlag] = field(default_factory=dict)
    pool_idle: float = 60.0
    shared_memory: bool = False
    model_control: bool = False
    max_body: int = 1 << 30
    max_json: int = 16 << 20
    memory: int = field(default_factory=quarter_of_the_machine)
    grace: float = 10.0
    admit: tuple[str, ...] = ()
    silent: bool = False
    log_format: str = "text"


def parse(arguments: Sequence[str] | None = None) -> GatewayConfig:
    """The configuration of a command line. Raises `UsageError`: a flag is wrong; ConfigError: an address is none."""
    parser = _parser()
    flags = parser.parse_args(arguments)
    flags.host, flags.port = host_and_port(flags.host or GatewayConfig.host, flags.port, GatewayConfig.port)
    if flags.port_end is None:
        flags.port_end = end_of_ports(flags.port, _PORTS)
    if flags.tracker is None and not flags.servers:
        flags.tracker = tracker_defaults()
    if flags.pools and flags.tracker is None:
        parser.error("--pool leases devices from a tracker: give --tracker HOST:PORT")
    for name in ("batches", "pools"):
        pairs = getattr(flags, name)
        setattr(flags, name, dict(pairs))
        if len(dict(pairs)) < len(pairs):
            parser.error(f"a model is given twice with {'--batch' if name == 'batches' else '--pool'}")
    if len(flags.keys) not in (0, 1, len(flags.servers)) or (flags.keys and not flags.servers):
        parser.error("give one --key-file for all servers (--server HOST:PORT), or one for each, in their order")
    flags.keys = _keys(flags.keys, len(flags.servers))
    flags.servers, flags.modules = tuple(flags.servers), tuple(flags.modules)
    return GatewayConfig(**vars(flags))


def _keys(files: Sequence[str], servers: int) -> tuple[str, ...]:
    """The standing keys of so many servers. Raises `ConfigError`: a file holds none, or others may read it."""
    if not files:
        return ()
    from rpcsys.link import standing_key  # with OpenSSL

    keys = tuple(map(standing_key.match_key, files))
    return keys * servers if len(keys) == 1 else keys


def _parser() -> Parser:
    parser = Parser(NAME, description="Serve a lab's models by the Open Inference Protocol (KServe V2), HTTP and gRPC.")
    lists: dict[str, Any] = {name: [] for name in ("servers", "keys", "modules", "batches", "pools")}
    parser.set_defaults(**{**vars(GatewayConfig()), **lists, "port": None, "port_end": None})
    add = parser.add_argument
    add("--tracker", type=tracker, metavar="HOST:PORT",
        help="serve the modules of all servers of this tracker, or of its replicas, with commas (default: that of "
        "RPCSYS_TRACKER, unless --server)",
    )  # fmt: skip
    add("--server", dest="servers", action="append", type=address, metavar="HOST:PORT",
        help="serve the modules of this server; repeatable",
    )  # fmt: skip
    add("--key-file", dest="keys", action="append", type=not_empty, metavar="FILE",
        help="the file with the key of a --server (its --standing-key): one for all, or one for each, in their order",
    )  # fmt: skip
    add("--module", dest="modules", action="append", type=not_empty, metavar="NAME",
        help="serve this module only; repeatable. The gateway is ready when all of them are there",
    )  # fmt: skip
    add("--host", help="address to listen on, also as HOST:PORT (default: %(default)s)")
    add("--port", type=port_number, help="first port to try for HTTP; 0 takes any free one (default: 8000)")
    add("--port-end", type=port_end, help=f"try ports below this one (default: {_PORTS} from --port)")
    add("--grpc-port", type=port_number,
        help=f"port for gRPC, which needs grpcio; 0 is off (default: the first free one from {GRPC_PORT} on)",
    )  # fmt: skip
    add("--http-port", type=port_number, help="/metrics and /healthz; 0 is off")
    add("--reuse-port", action="store_true", help="share the ports with other gateways of this machine")
    add("--batch", dest="batches", action="append", type=_batch, metavar="NAME=MAX[:US]",
        help="join calls of a model, up to MAX rows, waiting up to US microseconds for others (0); repeatable",
    )  # fmt: skip
    add("--queue", type=number_of("calls"), metavar="N", help="calls of a model that may wait (default: %(default)d)")
    add("--pool", dest="pools", action="append", type=_pool, metavar="NAME=KEY:FILE[:N]",
        help="serve FILE as NAME on up to N (1) devices of KEY, leased from the tracker; repeatable",
    )  # fmt: skip
    add("--pool-idle", type=seconds, metavar="S",
        help="give a pool's devices back after so many seconds without a call (default: %(default)g)",
    )  # fmt: skip
    add("--shared-memory", action="store_true", help="let clients of this machine pass arrays in shared memory")
    add("--model-control", action="store_true", help="let clients take models out of this gateway, and in again")
    size: dict[str, Any] = {"type": _size, "metavar": "SIZE"}
    add("--max-body", **size, help="longest body of a request (default: 1G)")
    add("--max-json", **size, help="most JSON of a request: the loop parses it (default: 16M)")
    add("--memory", **size, help="all bodies under way (default: a quarter of the machine's memory)")
    add("--grace", type=seconds, metavar="S",
        help="time for running calls to end when the gateway stops (default: %(default)g)",
    )  # fmt: skip
    add("--admit", type=admission.flag, metavar="NETWORKS", help=admission.HELP)
    add("--silent", action="store_true", help="log warnings and errors only")
    add("--log-format", choices=FORMATS, help="lines for people or JSON")
    return parser


def _batch(text: str) -> tuple[str, Batching]:
    found = _BATCH.fullmatch(text)
    if found is None or int(found[2]) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=MAX or NAME=MAX:MICROSECONDS, with a MAX from 2 on")
    return found[1], Batching(int(found[2]), int(found[3] or 0))


def _pool(text: str) -> tuple[str, PoolFlag]:
    found = _POOL.fullmatch(text)
    if found is None or found[4] == "0":
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=KEY:FILE or NAME=KEY:FILE:DEVICES")
    return found[1], PoolFlag(found[2], found[3], int(found[4] or 1))


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes: write 64M, or 1G")
    return int(found[1]) << _UNITS[found[2].upper()]
