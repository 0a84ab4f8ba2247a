"""The device server's flags, parsed once into a `Config`."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rpcsys import serve
from rpcsys.errors import ConfigError
from rpcsys.ffi import library
from rpcsys.logs import FORMATS
from rpcsys.server.capabilities import installed
from rpcsys.wire.keys import is_key

NAME = "rpcsys-server"

MAX_SLOTS = 64
"""Each slot has a waiting process; more sessions at once than this, no board has the cores for."""

MAX_LABELS = 24
"""Trackers take 32, and a server has some by itself."""

AUTO = "auto"

MIN_MEMORY = 32 << 20
"""Less than this, and Python itself cannot work in a session."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_CPUS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?\Z")


@dataclass(frozen=True)
class Config:
    """What the command line says. ``tvm`` is ``python``, ``ctypes`` or ``off``; ``preload`` holds module names.

    ``proxies``: where clients are waited for instead of on a port of its own. ``deploy_workers``: None is a core each.
    """

    host: str = "0.0.0.0"
    port: int = 9090
    port_end: int = 9199
    proxies: tuple[tuple[str, int], ...] = ()
    key: str = ""
    tracker: tuple[str, int] | None = None
    custom_addr: str | None = None
    load_library: tuple[str, ...] = ()
    fork: bool = True
    silent: bool = False
    slots: int = 1
    tvm: str = "off"
    tvm_library: str | None = None
    name: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    preload: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    grace_s: float = 10.0
    cpus: tuple[tuple[int, ...], ...] = ()
    session_memory: int | None = None
    isolation: bool = True
    read_only: bool = False
    import_timeout_s: float = 60.0
    allow_pickle: bool = False
    cache: str | None = None
    cache_bytes: int = 1 << 30
    deploy: str | None = None
    deploy_workers: int | None = None
    deploy_queue: int = 64
    health_check: str = ""
    recover: str = ""
    http_port: int = 0
    log_format: str = "text"


def parse(arguments: Sequence[str]) -> Config:
    """The configuration of a command line.

    Raises ConfigError for values that cannot be used, SystemExit(2) for flags that cannot be parsed.
    """
    flags = parser().parse_args(list(arguments))
    tvm_library = os.path.abspath(flags.tvm_library) if flags.tvm_library else None
    tvm = _tvm(flags.tvm, tvm_library)
    proxies = _proxies(flags.host, flags.port) if flags.through_proxy else ()
    leased = bool(flags.tracker or proxies)
    return Config(
        host=Config.host if proxies or not flags.host else flags.host[-1],
        port=flags.port,
        port_end=flags.port_end,
        proxies=proxies,
        key=_key(flags.key, flags.tracker, proxies),
        tracker=serve.parse_address(flags.tracker) if flags.tracker and not proxies else None,
        custom_addr=flags.custom_addr,
        load_library=_libraries(flags.load_library),
        fork=not flags.no_fork,
        silent=flags.silent,
        slots=flags.slots,
        tvm=tvm,
        tvm_library=tvm_library,
        name=_name(flags.name),
        labels=_labels(flags.label),
        preload=_preload(flags.preload, tvm),
        imports=tuple(flags.imports),
        grace_s=flags.grace,
        cpus=_cpus(flags.cpus, flags.slots) if flags.cpus else (),
        session_memory=flags.session_memory,
        isolation=not flags.no_isolation,
        read_only=_read_only(flags.read_only, flags.no_isolation),
        import_timeout_s=flags.import_timeout,
        allow_pickle=flags.allow_pickle,
        cache=_cache(flags.cache, flags.cache_size),
        cache_bytes=flags.cache_size or Config.cache_bytes,
        deploy=_deploy(flags.deploy, flags.deploy_workers or flags.deploy_queue),
        deploy_workers=flags.deploy_workers,
        deploy_queue=flags.deploy_queue or Config.deploy_queue,
        health_check=_command(flags.health_check, "--health-check", leased),
        recover=_command(flags.recover, "--recover", leased),
        http_port=flags.http_port,
        log_format=flags.log_format,
    )


def parser() -> argparse.ArgumentParser:
    """What knows the flags, and no more: whether a file is there, is for the machine to say that serves."""
    parser = serve.Parser(prog=NAME, allow_abbrev=False, description="Serve this device to rpcsys and TVM clients.")
    add = parser.add_argument
    add("--host", action="append", help="the address to listen on (default: all), or of the proxy; repeatable then")
    add("--port", type=serve.port_number, default=9090, help="the first port to try; 0 takes any free one")
    add("--port-end", type=int, default=9199, metavar="N", help="the first port not to try")
    add("--key", default="", help="what kind of device this is, such as rpi4")
    add("--tracker", metavar="HOST:PORT", help="the tracker to register with")
    add("--through-proxy", action="store_true", help="wait for clients at the proxy at --host and --port")
    add("--custom-addr", metavar="ADDR", help="the address at which clients reach this device, if another")
    add("--load-library", default="", metavar="A.so:B.so", help="libraries to load in every TVM session")
    add("--no-fork", action="store_true", help="a fresh interpreter for every session")
    add("--silent", action="store_true", help="log warnings and errors only")
    add("--slots", type=_slots, default=1, metavar="N", help="sessions at once (default: 1)")
    add("--cpus", metavar="SET,SET", help="the CPUs of each slot's sessions, such as 0-1,2-3 (or 0+2,1+3)")
    add("--session-memory", type=_memory, metavar="SIZE", help="what a session may take, such as 512M or 2G")
    add("--read-only", action="store_true", help="sessions can write to their own directories only, and leave no file")
    add("--no-isolation", action="store_true", help="sessions see the host's /tmp, /dev/shm and System V IPC")
    add("--tvm", choices=("auto", "python", "ctypes", "off"), default=AUTO, help="how to serve TVM's clients")
    add("--tvm-library", metavar="DIR", help="the folder of libtvm_ffi and libtvm_runtime, for --tvm ctypes")
    add("--name", default="", help="this server's name in summaries (default: the host's)")
    add("--label", action="append", default=[], metavar="K=V", help="a fact about the device; repeatable")
    add("--preload", default=AUTO, metavar="auto|none|A,B", help="modules that sessions find already imported")
    add(
        "--import",
        action="append",
        default=[],
        dest="imports",
        metavar="MODULE",
        help="a module that registers functions for sessions; repeatable",
    )
    add("--import-timeout", type=_seconds, default=60.0, metavar="S", help="what one of these imports may take")
    add("--allow-pickle", action="store_true", help="let clients send functions to run (session.run)")
    add("--cache", metavar="DIR", help="where files are kept between sessions, so that each is uploaded once")
    add("--cache-size", type=_size, metavar="SIZE", help="what the cache may take, such as 2G (default: 1G)")
    add("--health-check", metavar="COMMAND", help="run before the board is offered; if it fails, it is not")
    add("--recover", metavar="COMMAND", help="run to bring a board back that is not fit, such as a power switch")
    add("--self-test", action="store_true", help="say what works on this board and what is missing, and exit")
    add("--http-port", type=serve.port_number, default=0, metavar="N", help="/metrics and /healthz; 0 is off")
    add("--log-format", choices=FORMATS, default="text", help="lines for people (default) or JSON")
    add("--grace", type=_seconds, default=10.0, metavar="S", help="what sessions get when the server stops")
    add("--deploy", metavar="DIR", help="where deployed modules are kept, which many clients share (rpcsys deploy)")
    add(
        "--deploy-workers",
        type=_count,
        metavar="N",
        help="calls at once of each deployed module (default: a core each)",
    )
    add("--deploy-queue", type=_count, metavar="N", help="calls that may wait for these (default: 64)")
    return parser


def _command(text: str | None, flag: str, leased: bool) -> str:
    if text is not None and not text.strip():
        raise ConfigError(f"{flag}: a command is missing")
    if text and not leased:
        raise ConfigError(f"{flag} decides about what a tracker is offered: it needs --tracker")
    return text or ""


def _slots(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MAX_SLOTS):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of slots (1 to {MAX_SLOTS})")
    return int(text)


def _memory(text: str) -> int:
    size = _size(text)
    if size < MIN_MEMORY:
        raise argparse.ArgumentTypeError(f"{text!r} is less than a session needs (32M)")
    return size


def _size(text: str) -> int:
    """Bytes, with K, M or G for the powers of 1024."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not (number.isascii() and number.isdigit() and len(number) <= 15 and unit in _UNITS):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a number of bytes, or one with K, M or G such as 512M")
    return int(number) * _UNITS[unit]


def _cache(folder: str | None, size: int | None) -> str | None:
    if size is not None and not folder:
        raise ConfigError("--cache-size needs --cache DIR: the folder to keep files in")
    if size == 0:
        raise ConfigError("--cache-size 0: leave out --cache to keep nothing")
    return os.path.abspath(folder) if folder else None


def _deploy(folder: str | None, more: object) -> str | None:
    if more and not folder:
        raise ConfigError("--deploy-workers and --deploy-queue need --deploy DIR: where deployed modules are kept")
    if folder and not installed("rpcsys.server.supervisor.deployments_io"):
        raise ConfigError("--deploy is not in the device runtime: install rpcsys on this machine (pip install rpcsys)")
    return os.path.abspath(folder) if folder else None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 1024):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 1024")
    return int(text)


def _read_only(wanted: bool, no_isolation: bool) -> bool:
    if wanted and no_isolation:
        raise ConfigError("--read-only needs mounts of a session's own: leave out --no-isolation")
    return wanted


def _cpus(text: str, slots: int) -> tuple[tuple[int, ...], ...]:
    """A set of CPUs for each slot: ``0-1,2-3``; parts of one set are joined by ``+``."""
    sets = tuple(_cpu_set(text, part) for part in text.split(","))
    if len(sets) != slots:
        raise ConfigError(f"--cpus {text}: {len(sets)} sets of CPUs for {slots} slots; give each slot one (--slots)")
    everything = [cpu for chosen in sets for cpu in chosen]
    for cpu in sorted(everything):
        if everything.count(cpu) > 1:
            raise ConfigError(f"--cpus {text}: CPU {cpu} is named twice; sessions on one CPU would disturb each other")
    here = os.sched_getaffinity(0)
    missing = [str(cpu) for cpu in sorted(everything) if cpu not in here]
    if missing:
        raise ConfigError(
            f"--cpus {text}: there is no CPU {', '.join(missing)} here; this server may use "
            + ", ".join(map(str, sorted(here)))
        )
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
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds (0 to 86400)")
    return seconds


def _proxies(hosts: list[str] | None, port: int) -> tuple[tuple[str, int], ...]:
    """The proxies of the hosts, each with a port of its own or with ``port``."""
    if not hosts or port == 0:
        raise ConfigError("--through-proxy needs the proxy's address: --host HOST --port PORT")
    proxies = tuple(serve.parse_address(host, port) for host in hosts)
    for proxy in proxies:
        if proxies.count(proxy) > 1:
            raise ConfigError(f"--host {proxy[0]} is given twice: one connection for each slot waits there")
    return proxies


def _key(key: str, tracker: str | None, proxies: tuple[tuple[str, int], ...]) -> str:
    if (tracker or proxies) and not key:
        flag = "--through-proxy" if proxies else "--tracker"
        raise ConfigError(f"{flag} needs --key: what kind of device this is, such as --key rpi4")
    if key and not is_key(key):
        raise ConfigError(f"--key {key!r}: a key has no space, comma or bracket, and at most 255 characters")
    return key


def _name(name: str) -> str:
    name = name or platform.node() or "server"
    if not name.isprintable() or len(name) > 128:
        raise ConfigError("--name: printable text of at most 128 characters")
    return name


def _labels(texts: list[str]) -> tuple[tuple[str, str], ...]:
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and text.isprintable() and len(text) <= 256):
            raise ConfigError(f"--label {text!r}: labels look like os=linux")
        labels[name] = value
    if len(labels) > MAX_LABELS:
        raise ConfigError(f"--label: {len(labels)} labels; at most {MAX_LABELS}, beside those that every server has")
    return tuple(labels.items())


def _libraries(text: str) -> tuple[str, ...]:
    paths = [os.path.abspath(path) for path in text.split(":") if path]
    for path in paths:
        if not os.path.isfile(path):
            raise ConfigError(f"--load-library {path}: there is no such file")
    return tuple(paths)


def _tvm(wanted: str, folder: str | None) -> str:
    """How TVM's clients are served: as wanted; of ``auto``, the first way that this board has.

    A folder of libraries that is named is meant to be used: then ``auto`` does not look for the package.
    """
    if wanted == "off":
        return wanted
    if wanted == "python" and folder is not None:
        raise ConfigError("--tvm-library is for --tvm ctypes: the tvm package has libraries of its own")
    if folder is not None or wanted == "ctypes":
        _check_libraries(folder)
        return "ctypes"
    if installed("tvm"):
        return "python"
    if wanted == "python":
        raise ConfigError("--tvm python: there is no tvm package here (python3 -m pip install apache-tvm)")
    return "ctypes" if library.has_runtime() else "off"


def _check_libraries(folder: str | None) -> None:
    found = library.find(folder)
    if found is not None and found.runtime is not None:
        return
    missing = library.RUNTIME if found else library.FFI
    if folder is not None:
        raise ConfigError(f"--tvm-library {folder}: there is no {missing} in it")
    raise ConfigError(f"--tvm ctypes: there is no {missing} here; say where it is with --tvm-library DIR")


def _preload(text: str, tvm: str) -> tuple[str, ...]:
    """``auto`` is what sessions will want and this board has; names given must be there (the zygote tells)."""
    if text == "none":
        return ()
    if text != AUTO:
        return tuple(name for name in text.split(",") if name)
    found = [name for name in ("numpy", "onnxruntime") if installed(name)]
    return (*found, *(["tvm.rpc.server"] if tvm == "python" else []))
