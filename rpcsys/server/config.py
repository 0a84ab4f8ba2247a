"""The device server's flags, parsed once into a `ServerConfig`."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rpcsys import serve
from rpcsys.errors import ConfigError
from rpcsys.ffi import library
from rpcsys.link import admission, ciphers
from rpcsys.link.address import host_and_port, parse_address, parse_tracker
from rpcsys.logs import FORMATS
from rpcsys.server.canary import setting
from rpcsys.server.capabilities import installed
from rpcsys.wire.device_names import KINDS
from rpcsys.wire.keys import is_key
from rpcsys.wire.labels import MAX_GIVEN

NAME = "rpcsys-server"
_PORTS = 109  # 9090 to 9198
MAX_SLOTS = 64  # each slot has a waiting process; no board has cores for more sessions at once
MIN_MEMORY = 32 << 20  # bytes; with less, Python itself cannot run in a session
AUTO = "auto"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_CPUS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?\Z")


@dataclass(frozen=True)
class ServerConfig:
    """The configuration of a device server, from its command line."""

    host: str = "0.0.0.0"
    port: int = 9090
    port_end: int = 9199
    proxies: tuple[tuple[str, int], ...] = ()  # where connections wait for clients, in place of a port
    key: str = ""
    tracker: tuple[str, int] | None = None
    custom_addr: str | None = None
    custom_port: int = 0  # at which clients reach this device; 0: the one that it listens on
    load_library: tuple[str, ...] = ()
    fork: bool = True
    silent: bool = False
    slots: int = 1
    tvm: str = "off"  # or "python", or "ctypes"
    tvm_library: str | None = None
    tvm_apart: bool = False  # whether only sessions of TVM's clients have the tvm package
    name: str = ""  # "" is the host's
    labels: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] | None = None  # the kinds to look for, None for all
    preload: tuple[str, ...] = ()  # names of modules
    imports: tuple[str, ...] = ()
    grace_s: float = 10.0
    cpus: tuple[tuple[int, ...], ...] = ()
    session_memory: int | None = None  # in bytes
    pin_governor: bool = False
    isolation: bool = True
    read_only: bool = False
    session_network: str = "host"  # or "none"
    session_user: str = "none"  # or "auto", or a name
    session_groups: tuple[str, ...] | None = None  # None: those of accelerators that this board has
    import_timeout_s: float = 60.0
    allow_pickle: bool = False
    allow_exec: bool = False
    cache: str | None = None
    cache_bytes: int = 1 << 30
    deploy: str | None = None
    deploy_workers: int | None = None  # None: one for each core
    deploy_queue: int = 64
    health_check: str = ""
    recover: str = ""
    canary: setting.CanaryChoice | None = None
    canary_every_s: float | None = None  # from one run to the next; None: as often as is allowed by default
    http_port: int = 0
    http_open: tuple[str, ...] = ()  # networks that see its metrics in a lab, beside its own machine
    lab: str = ""  # the file of its credential for a closed lab: sessions are encrypted
    standing_key: str = ""  # the file with the key that clients need, of a server without a tracker
    admit: tuple[str, ...] = ()  # networks whose clients are served beside the private ones
    log_format: str = "text"

    @property
    def cache_options(self) -> list[Any] | None:
        """The cache's folder and its limit in bytes, for the processes that receive files; None without a cache."""
        return [self.cache, self.cache_bytes] if self.cache else None


def parse(arguments: Sequence[str]) -> ServerConfig:
    """The configuration of a command line.

    Raises `ConfigError` for values that cannot be used, `UsageError` for flags that cannot be parsed.
    """
    flags = parser().parse_args(list(arguments))
    _check(flags)
    host, port = ServerConfig.host, ServerConfig.port if flags.port is None else flags.port
    proxies = _proxies(flags.host, port) if flags.through_proxy else ()
    if not proxies and flags.host and flags.host[-1]:
        host, port = host_and_port(flags.host[-1], flags.port, port)
    custom, custom_port = host_and_port(flags.custom_addr, None, 0) if flags.custom_addr else (None, 0)
    given_there = f"--custom-addr {flags.custom_addr}: give the port of a proxy at the proxy, as its own --custom-addr"
    _refuse(proxies and custom_port, given_there)
    tvm_library = _whole_path(flags.tvm_library) if flags.tvm_library else None
    tvm, end = _tvm(flags.tvm, tvm_library), flags.port_end
    made = {
        "host": host,
        "port": port,
        "port_end": end if end is not None else serve.end_of_ports(port, _PORTS),
        "custom_addr": custom,
        "custom_port": custom_port,
        "proxies": proxies,
        "tracker": parse_tracker(flags.tracker) if flags.tracker and not proxies else None,
        "load_library": tuple(_library(path, tvm_library) for path in flags.load_library.split(":") if path),
        "tvm": tvm,
        "tvm_library": tvm_library,
        "tvm_apart": tvm == "python" and flags.preload == AUTO,
        "labels": _labels(flags.labels),
        "devices": _devices(flags.devices),
        "preload": _preload(flags.preload),
        "session_user": flags.session_user or (AUTO if flags.lab and os.geteuid() == 0 else ServerConfig.session_user),
        "session_groups": None if flags.session_groups is None else _split(flags.session_groups),
        "imports": tuple(flags.imports),
        "cpus": _cpus(flags.cpus, flags.slots) if flags.cpus else (),
        "cache": _whole_path(flags.cache) if flags.cache else None,
        "cache_bytes": flags.cache_bytes or ServerConfig.cache_bytes,
        "deploy": _whole_path(flags.deploy) if flags.deploy else None,
        "deploy_queue": flags.deploy_queue or ServerConfig.deploy_queue,
        "lab": _whole_path(flags.lab) if flags.lab else "",
        "standing_key": _whole_path(flags.standing_key) if flags.standing_key else "",
        "health_check": flags.health_check or "",
        "recover": flags.recover or "",
        "canary": setting.parse(_canary(flags)),
    }
    as_given = {name: value for name, value in vars(flags).items() if name not in ("through_proxy", "self_test")}
    config = ServerConfig(**{**as_given, **made})
    for path in config.load_library:
        _refuse(not os.path.isfile(path), f"--load-library {path}: there is no such file")
    wrong = not config.name.isprintable() or len(config.name) > 128
    _refuse(wrong, "--name: printable text of at most 128 characters")
    return config


def parser() -> serve.Parser:
    """The parser of the flags. It does not check files: another machine may be the one that serves."""
    repeatable: dict[str, Any] = {"action": "append", "default": []}
    folder: dict[str, Any] = {"type": serve.not_empty, "metavar": "DIR"}
    parser = serve.Parser(NAME, allow_abbrev=False, description="Serve this device to rpcsys and TVM clients.")
    add = parser.add_argument
    at = "the address to listen on (default: all), or the proxy's (repeatable); also as HOST:PORT"
    add("--host", action="append", help=at)
    add("--port", type=serve.port_number, help="the first port to try (default: 9090); 0 takes any free one")
    add("--port-end", type=serve.port_end, metavar="N", help=f"the first port not to try (default: {_PORTS} on)")
    add("--key", default="", help="what kind of device this is, such as rpi4")
    add(
        "--tracker",
        type=serve.not_empty,
        metavar="HOST:PORT",
        help="the tracker to register with, or its replicas, with commas",
    )
    add("--through-proxy", action="store_true", help="wait for clients at the proxy at --host and --port")
    differs = "the host, or HOST:PORT, at which clients reach this device, if it differs"
    add("--custom-addr", metavar="ADDR", help=differs)
    loads = "libraries to load with TVM's runtime: paths, or names in its folder"
    add("--load-library", default="", metavar="A.so:B.so", help=loads)
    add("--no-fork", action="store_false", dest="fork", help="start a new interpreter for every session")
    add("--silent", action="store_true", help="log warnings and errors only")
    slots = _whole(MAX_SLOTS, f"of slots (1 to {MAX_SLOTS})")
    add("--slots", type=slots, default=1, metavar="N", help="sessions at once (default: 1)")
    add("--cpus", metavar="SET,SET", help="the CPUs of each slot's sessions, such as 0-1,2-3 (or 0+2,1+3)")
    memory = functools.partial(_size, least=MIN_MEMORY)
    add("--session-memory", type=memory, metavar="SIZE", help="memory limit of a session, such as 512M or 2G")
    pinned = os.environ.get("RPCSYS_PIN_GOVERNOR", "") not in ("", "0")
    fast = "CPUs with a session run under the frequency governor performance"
    add("--pin-governor", action="store_true", default=pinned, help=fast)
    add("--read-only", action="store_true", help="sessions can write to their own directories only, and leave no file")
    reach = "what sessions reach: the host's network (default), or their client alone"
    add("--session-network", choices=("host", "none"), default="host", help=reach)
    runs = "the user of sessions: auto (one for each slot; as root in a lab), a name, or none (the server's)"
    add("--session-user", type=serve.not_empty, metavar="NAME", help=runs)
    joins = "groups of these users (default: video and render, where they exist)"
    add("--session-groups", metavar="A,B", help=joins)
    sees = "sessions see the host's /tmp, /dev/shm and System V IPC"
    add("--no-isolation", action="store_false", dest="isolation", help=sees)
    add("--tvm", choices=("auto", "python", "ctypes", "off"), default=AUTO, help="how to serve TVM's clients")
    add("--tvm-library", **folder, help="the folder of libtvm_ffi and libtvm_runtime, for --tvm ctypes")
    add("--name", default="", help="this server's name in summaries (default: the host's)")
    add("--label", **repeatable, dest="labels", metavar="K=V", help="a fact about the device; repeatable")
    looks = "the kinds of devices whose drivers are asked at the start (default: all)"
    add("--devices", default=os.environ.get("RPCSYS_DEVICES", "all"), metavar="all|none|A,B", help=looks)
    add("--preload", default=AUTO, metavar="auto|none|A,B", help="modules to import before sessions start")
    registers = "a module that registers functions for sessions; repeatable"
    add("--import", **repeatable, dest="imports", metavar="MODULE", help=registers)
    took = "longest time for one of these imports"
    add("--import-timeout", type=_seconds, default=60.0, dest="import_timeout_s", metavar="S", help=took)
    add("--allow-pickle", action="store_true", help="let clients send functions to run (session.run)")
    add("--allow-exec", action="store_true", help="let clients start programs and forward ports (rpcsys exec)")
    add("--cache", **folder, help="where files are kept between sessions, so that each is uploaded once")
    holds = "the largest size of the cache, such as 2G (default: 1G)"
    add("--cache-size", type=_size, dest="cache_bytes", metavar="SIZE", help=holds)
    add("--health-check", metavar="COMMAND", help="run before the board is offered; a failure holds it back")
    add("--recover", metavar="COMMAND", help="run to recover a board that is not fit, such as a power switch")
    times = "a model, with the longest time that is not ill (MODEL:5ms), or builtin, which is timed when the board is"
    times += " idle: the tracker marks one that becomes slower (RPCSYS_CANARY)"
    add("--canary", nargs="?", const=setting.BUILTIN, metavar="MODEL[:LIMIT]", help=times)
    pace = "between two runs of it (default: 300, and so that they take at most 1%% of the board's time)"
    add("--canary-every", type=_seconds, dest="canary_every_s", metavar="S", help=pace)
    add("--self-test", action="store_true", help="report what works on this board and what is missing, and exit")
    add("--http-port", type=serve.port_number, default=0, metavar="N", help="/metrics and /healthz; 0 is off")
    add("--http-open", type=admission.flag, default=(), metavar="NETWORKS", help=admission.HTTP_OPEN)
    add("--admit", type=admission.flag, default=(), metavar="NETWORKS", help=admission.HELP)
    file: dict[str, Any] = {"type": serve.not_empty, "metavar": "FILE"}
    add("--lab", **file, help="this board's credential for a closed lab: sessions are encrypted")
    clients_need = "without a tracker: the file with the key that clients need (made at the first start)"
    add("--standing-key", **file, help=clients_need)
    add("--log-format", choices=FORMATS, default="text", help="lines for people (default) or JSON")
    grace = "time for sessions to end when the server stops"
    add("--grace", type=_seconds, default=10.0, dest="grace_s", metavar="S", help=grace)
    add("--deploy", **folder, help="the folder of deployed modules, which many clients share (rpcsys deploy)")
    count = _whole(1024, "from 1 to 1024")
    workers = "calls at once of each deployed module (default: one for each core)"
    add("--deploy-workers", type=count, metavar="N", help=workers)
    add("--deploy-queue", type=count, metavar="N", help="calls of each that may wait (default: 64)")
    return parser


def _check(flags: argparse.Namespace) -> None:
    proxied = flags.through_proxy
    leased = flags.tracker or proxied
    address = "--through-proxy needs the proxy's address: --host HOST --port PORT"
    _refuse(proxied and (not flags.host or flags.port == 0), address)
    leasing = "--through-proxy" if proxied else "--tracker"
    kind = f"{leasing} needs --key: what kind of device this is, such as --key rpi4"
    _refuse(leased and not flags.key, kind)
    form = f"--key {flags.key!r}: a key has no space, comma or bracket, and at most 255 characters"
    _refuse(flags.key and not is_key(flags.key), form)
    mounts = "--read-only needs mounts of a session's own: leave out --no-isolation"
    _refuse(flags.read_only and not flags.isolation, mounts)
    users = "--session-groups are of the users that --session-user gives to sessions: give that, too"
    _refuse(flags.session_groups is not None and flags.session_user in (None, "none"), users)
    network = "--session-network none needs namespaces of a session's own: leave out --no-isolation"
    _refuse(flags.session_network == "none" and not flags.isolation, network)
    folder = "--cache-size needs --cache DIR: the folder to keep files in"
    _refuse(flags.cache_bytes is not None and not flags.cache, folder)
    _refuse(flags.cache_bytes == 0, "--cache-size 0: leave out --cache to keep nothing")
    kept = "--deploy-workers and --deploy-queue need --deploy DIR: where deployed modules are kept"
    _refuse((flags.deploy_workers or flags.deploy_queue) and not flags.deploy, kept)
    absent = "--deploy is not in the device runtime: install rpcsys on this machine (pip install rpcsys)"
    _refuse(flags.deploy and not installed("rpcsys.server.models.deployer"), absent)
    _check_keys(flags, leased)
    _refuse(flags.canary and not leased, "--canary reports to a tracker, which judges it: it needs --tracker")
    paced = "--canary-every is the pace of a canary: give --canary, too"
    _refuse(flags.canary_every_s is not None and not _canary(flags), paced)
    for flag, command in (("--health-check", flags.health_check), ("--recover", flags.recover)):
        _refuse(command is not None and not command.strip(), f"{flag}: a command is missing")
        _refuse(command and not leased, f"{flag} decides about what a tracker is offered: it needs --tracker")


def _canary(flags: argparse.Namespace) -> str:
    """The canary that is wanted; the environment's counts where a tracker hears of it."""
    if flags.canary is not None:
        return str(flags.canary)
    return os.environ.get("RPCSYS_CANARY", "") if flags.tracker or flags.through_proxy else ""


def _check_keys(flags: argparse.Namespace, leased: object) -> None:
    """The flags of encrypted sessions."""
    _refuse(flags.lab and not leased, "--lab is for a server of a tracker: give --tracker, or use --standing-key")
    _refuse(flags.http_open and not (flags.lab and flags.http_port), admission.HTTP_OPEN_ALONE)
    apart = "--standing-key is for a server without a tracker: with one, --lab makes keys for each session"
    _refuse(flags.standing_key and (leased or flags.lab), apart)
    _refuse(flags.standing_key and not flags.key, "--standing-key needs --key: the name in it, such as --key edge")
    _refuse((flags.lab or flags.standing_key) and not installed("_ssl"), ciphers.no_ssl())


def _split(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _devices(text: str) -> tuple[str, ...] | None:
    kinds = () if text == "none" else _split(text)
    known = [kind for kind in KINDS if kind != "cpu"]
    wrong = [kind for kind in kinds if kind not in known]
    _refuse(text != "all" and wrong, f"--devices {text}: give all, none, or kinds of {', '.join(known)}")
    return None if text == "all" else kinds


def _whole_path(path: str) -> str:
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: the working folder is gone; cd to another, or write the whole path") from None


def _refuse(wrong: object, text: str) -> None:
    if wrong:
        raise ConfigError(text)


def _whole(most: int, what: str) -> Callable[[str], int]:

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no number {what}")
        return int(text)

    return parse


def _size(text: str, least: int = 0) -> int:
    """Parse a size in bytes; K, M and G are powers of 1024."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not (number.isascii() and number.isdigit() and len(number) <= 15 and unit in _UNITS):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a number of bytes, or one with K, M or G such as 512M")
    if int(number) * _UNITS[unit] < least:
        raise argparse.ArgumentTypeError(f"{text!r} is less than a session needs (32M)")
    return int(number) * _UNITS[unit]


def _cpus(text: str, slots: int) -> tuple[tuple[int, ...], ...]:
    """Parse a set of CPUs for each slot, as in ``0-1,2-3``; ``+`` joins the parts of one set."""
    sets = tuple(_cpu_set(text, part) for part in text.split(","))
    count = f"--cpus {text}: {len(sets)} sets of CPUs for {slots} slots; give each slot one (--slots)"
    _refuse(len(sets) != slots, count)
    everything = sorted(cpu for chosen in sets for cpu in chosen)
    for cpu, following in zip(everything, everything[1:]):
        twice = f"--cpus {text}: CPU {cpu} is named twice; sessions on one CPU would disturb each other"
        _refuse(cpu == following, twice)
    here = os.sched_getaffinity(0)
    missing = ", ".join(str(cpu) for cpu in everything if cpu not in here)
    may_use = ", ".join(map(str, sorted(here)))
    _refuse(missing, f"--cpus {text}: there is no CPU {missing} here; this server may use {may_use}")
    return sets


def _cpu_set(text: str, part: str) -> tuple[int, ...]:
    found: list[int] = []
    for piece in part.split("+"):
        match = _CPUS.match(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ConfigError(f"--cpus {text}: {part!r} is no set of CPUs; they look like 0, 0-1 or 0+2")
        found += range(first, last + 1)
    return tuple(found)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) <= 86400:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds (0 to 86400)")


def _proxies(hosts: list[str], port: int) -> tuple[tuple[str, int], ...]:
    """The addresses of the proxies: each host with its own port, or with ``port``."""
    proxies = tuple(parse_address(host, port) for host in hosts)
    for proxy in proxies:
        twice = f"--host {proxy[0]} is given twice, and one connection for each slot waits there: give it once"
        _refuse(proxies.count(proxy) > 1, twice)
    return proxies


def _labels(texts: list[str]) -> tuple[tuple[str, str], ...]:
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        fits = name and equals and text.isprintable() and len(text) <= 256
        taken = set(name) & set(" <>!") or value.startswith("=")  # a request could not name such a label
        _refuse(
            not fits or bool(taken), f"--label {text!r}: labels look like os=linux; a name has no space, <, >, ! or ="
        )
        labels[name] = value
    many = f"--label: {len(labels)} labels; at most {MAX_GIVEN}, beside those that every server has"
    _refuse(len(labels) > MAX_GIVEN, many)
    return tuple(labels.items())


def _tvm(wanted: str, folder: str | None) -> str:
    """How TVM's clients are served: as ``wanted``; for ``auto``, the first way that this board has.

    With a ``folder`` of libraries, ``auto`` means ctypes and ignores the tvm package.
    """
    if wanted == "off":
        return wanted
    if wanted == "python" and folder is not None:
        raise ConfigError("--tvm-library is for --tvm ctypes: the tvm package has libraries of its own")
    if folder is not None or wanted == "ctypes":
        found = library.find(folder)
        missing = library.RUNTIME if found else library.FFI
        here = f"--tvm ctypes: there is no {missing} here; say where it is with --tvm-library DIR"
        inside = f"--tvm-library {folder}: there is no {missing} in it"
        _refuse(found is None or found.runtime is None, here if folder is None else inside)
        return "ctypes"
    if installed("tvm"):
        return "python"
    if wanted == "python":
        raise ConfigError("--tvm python: there is no tvm package here (python3 -m pip install apache-tvm)")
    return "ctypes" if library.has_runtime() else "off"


def _library(given: str, tvm_library: str | None) -> str:
    """The whole path of a library of --load-library; a name that is no file here is one beside TVM's libraries."""
    if not os.path.dirname(given) and not os.path.isfile(given):
        beside = [os.path.join(os.path.dirname(path), given) for path in library.find(tvm_library) or () if path]
        given = next((path for path in beside if os.path.isfile(path)), given)
    return _whole_path(given)


def _preload(text: str) -> tuple[str, ...]:
    """The modules to import in advance: the given names or, for ``auto``, those of this board that all sessions use."""
    if text == "none":
        return ()
    if text != AUTO:
        return _split(text)
    return tuple(name for name in ("numpy", "onnxruntime") if installed(name))
