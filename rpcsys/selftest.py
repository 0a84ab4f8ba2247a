"""Reports what works on this board, what is missing, and how to get it: ``rpcsys-server --self-test``.

It runs even where little works: each check imports what it needs, and loads libraries in separate processes.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

OK, MISSING, BROKEN = "ok", "missing", "broken"

#: Modules of the standard library that distributions package separately or omit.
_MODULES = (
    "array", "ctypes", "fcntl", "hashlib", "json", "mmap", "resource", "select", "socket", "subprocess",
)  # fmt: skip
_BUILT_AFTER = {"ctypes": "libffi", "hashlib": "openssl"}
#: Optional packages of sessions -> what is missing without each, and how to install it.
_PACKAGES = {
    "numpy": "functions get plain memory for arrays; apt-get install python3-numpy",
    "onnxruntime": "no .onnx files; python3 -m pip install onnxruntime",
    "ai_edge_litert": "no .tflite files; python3 -m pip install ai-edge-litert",
    "openvino": "no .xml files of OpenVINO; python3 -m pip install openvino",
    "iree.runtime": "no .vmfb files; python3 -m pip install iree-base-runtime",
    "executorch": "no .pte files; python3 -m pip install executorch",
    "cloudpickle": "no session.run; python3 -m pip install cloudpickle",
}
_CHECK_TIMEOUT_S = 60
#: Bytes of memory, and on the disk, that sessions need at least.
_LITTLE = 64 << 20

_LOAD = "import ctypes, sys; [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in sys.argv[1:]]"
_IMPORT = "import importlib, sys; print(getattr(importlib.import_module(sys.argv[1]), '__version__', 'installed'))"
#: A library that is missing -> packages that have it.
_PROVIDERS = {
    "libstdc++.so.6": "apt-get install libstdc++6; Buildroot: BR2_TOOLCHAIN_BUILDROOT_CXX",
    "libgcc_s.so.1": "apt-get install libgcc-s1; Buildroot: a toolchain with libgcc",
    "libatomic.so.1": "apt-get install libatomic1",
}


class Finding(NamedTuple):
    """The result of one check. ``state``: OK, MISSING (the board serves without it) or BROKEN (it cannot serve)."""

    state: str
    what: str
    says: str


def run(arguments: Sequence[str]) -> int:
    """Check everything and print it; 0 when this board can serve, else 1. ``arguments`` are the server's flags."""
    broken = 0
    for check in _CHECKS:
        for finding in _guarded(check, arguments):
            broken += finding.state == BROKEN
            sys.stdout.write("{:8} {:16} {}\n".format(*finding))
            sys.stdout.flush()
    sys.stdout.write(f"this board cannot serve: {broken} broken\n" if broken else "this board can serve\n")
    return 1 if broken else 0


def _guarded(check: Callable[[Sequence[str]], Iterator[Finding]], arguments: Sequence[str]) -> Iterator[Finding]:
    """Run a check; one that raises is a BROKEN finding."""
    try:
        yield from check(arguments)
    except Exception as error:  # noqa: BLE001 - any error is reported
        yield Finding(BROKEN, check.__name__[1:], f"{type(error).__name__}: {error}")


def _board(arguments: Sequence[str]) -> Iterator[Finding]:
    libc = " ".join(platform.libc_ver()) or "an unknown C library"
    yield Finding(OK, "board", f"{platform.machine()}, {platform.system()} {platform.release()}, {libc}")
    yield Finding(OK, "python", f"{platform.python_version()} at {sys.executable}")


def _standard_library(arguments: Sequence[str]) -> Iterator[Finding]:
    import importlib

    for name in _MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            first = _BUILT_AFTER.get(name)
            how = f"Buildroot: build python3 after {first}" if first else "install all of Python's standard library"
            yield Finding(BROKEN, name, f"this Python has none ({error}); Debian: apt-get install python3; {how}")


def _folder(arguments: Sequence[str]) -> Iterator[Finding]:
    import tempfile

    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        yield Finding(BROKEN, "folder", f"sessions have no writable folder ({error}); set TMPDIR to a folder on a disk")
        return
    facts = os.statvfs(folder)
    free, state = facts.f_bavail * facts.f_frsize, BROKEN
    if facts.f_flag & os.ST_NOEXEC:
        says = f"{folder} is mounted noexec, and no library loads from there; set TMPDIR to another"
    elif free < _LITTLE:
        says = f"{folder} has only {free >> 20} MB left; free some, or set TMPDIR to another"
    else:
        state, says = OK, f"{folder}, {free >> 20} MB free"
    yield Finding(state, "folder", says)


def _memory(arguments: Sequence[str]) -> Iterator[Finding]:
    with open("/proc/meminfo", encoding="ascii") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in file}
    free = sizes.get("MemAvailable", sizes["MemFree"])
    text = f"{free >> 20} MB of {sizes['MemTotal'] >> 20} MB available"
    yield Finding(OK if free >= _LITTLE else BROKEN, "memory", text)


def _system(arguments: Sequence[str]) -> Iterator[Finding]:
    import tempfile

    from rpcsys.server.sandbox import mount_namespace, processes

    with tempfile.TemporaryDirectory() as folder:
        refused = mount_namespace.probe(os.path.join(folder, "sessions"))
    shared = f"sessions share /tmp and shared memory ({refused}); start the server as root"
    private = "sessions have /tmp and shared memory of their own"
    yield Finding(MISSING, "namespaces", shared) if refused else Finding(OK, "namespaces", private)
    if processes.become_subreaper():
        yield Finding(OK, "subreapers", "what a session leaves running is found and ended")
    else:
        yield Finding(MISSING, "subreapers", "what a session leaves running goes on; Linux 3.4 or later has them")


def _tls(arguments: Sequence[str]) -> Iterator[Finding]:
    from rpcsys.link import ciphers

    done = _run_apart("import ssl; print(ssl.OPENSSL_VERSION)")
    if done.returncode:
        needed = _value(arguments, "--lab") or _value(arguments, "--standing-key")
        yield Finding(BROKEN if needed else MISSING, "TLS", ciphers.no_ssl())
        return
    cipher = (
        "AES, by this CPU's instructions" if ciphers.has_aes() else "ChaCha20: this CPU has no instructions for AES"
    )
    yield Finding(OK, "TLS", f"{' '.join(done.stdout.split()[:2])}; {cipher}")


def _tvm(arguments: Sequence[str]) -> Iterator[Finding]:
    from rpcsys.ffi import library

    named = _value(arguments, "--tvm-library")
    found = library.find(os.path.abspath(named) if named else None)
    if found is None:
        how = "pack with --from-wheels or --libraries DIR, or pip install apache-tvm-ffi"
        yield Finding(MISSING, library.FFI, f"only self-contained libraries load; {how}")
        return
    yield _loaded(library.FFI, [found.ffi])
    if found.runtime is None:
        yield Finding(MISSING, library.RUNTIME, "no TVM clients, no Relax programs; pack with one built for this board")
    else:
        yield _loaded(library.RUNTIME, [found.ffi, found.runtime])


def _drivers(arguments: Sequence[str]) -> Iterator[Finding]:
    from rpcsys.ffi import library

    found = library.find()
    first = [found.ffi] if found is not None else []
    for path in filter(None, (_value(arguments, "--load-library") or "").split(":")):
        yield _loaded(os.path.basename(path), [*first, os.path.abspath(path)])


def _devices(arguments: Sequence[str]) -> Iterator[Finding]:
    import json

    from rpcsys.server.devices import search

    named, libraries = _value(arguments, "--tvm-library"), (_value(arguments, "--load-library") or "").split(":")
    found = search.DriverSearch(search.questions(None, named, [os.path.abspath(path) for path in libraries if path]))
    found.wait()
    for device in json.loads(found.devices().described):
        about = (device["title"], device["memory"] and f"{device['memory'] >> 20} MB", device["runtime"])
        used = f"for {' and '.join(device['loaders'])}" if device["loaders"] else "nothing here can use it"
        yield Finding(OK if device["loaders"] else MISSING, device["name"], ", ".join(filter(None, [*about, used])))
    for problem in found.problems:
        yield Finding(MISSING, "devices", problem)


def _speedups(arguments: Sequence[str]) -> Iterator[Finding]:
    from rpcsys.compiled import WITHOUT

    without = f"{WITHOUT}; calls take longer; rpcsys pack compiles them for CPython 3.9 or later with glibc"
    yield Finding(MISSING, "speedups", without) if WITHOUT else Finding(OK, "speedups", "in use")


def _packages(arguments: Sequence[str]) -> Iterator[Finding]:
    from rpcsys.server import capabilities

    for name, without in _PACKAGES.items():
        if not capabilities.installed(name):
            yield Finding(MISSING, name, without)
            continue
        done = _run_apart(_IMPORT, name)
        works = done.returncode == 0
        yield Finding(OK if works else BROKEN, name, _last_line(done.stdout if works else done.stderr, done))


def _tracker(arguments: Sequence[str]) -> Iterator[Finding]:
    import socket

    from rpcsys.errors import RpcsysError
    from rpcsys.link.address import parse_address

    given = _value(arguments, "--tracker")
    for where in () if given is None else given.split(","):
        try:
            socket.create_connection(parse_address(where), timeout=10).close()
            yield Finding(OK, "tracker", f"{where} accepts connections")
        except (OSError, RpcsysError) as error:
            yield Finding(BROKEN, "tracker", f"{where}: {error}; is it running, and may this board reach it?")


def _session(arguments: Sequence[str]) -> Iterator[Finding]:
    """Start a server of this program, and open a session on it."""
    import json
    import select
    import time

    from rpcsys.client import connect
    from rpcsys.server.sandbox import launch

    started = time.monotonic()
    words = [*launch.flags(), "-c", _SERVE, json.dumps(sys.path), "--host", "127.0.0.1", "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True
    )
    try:
        assert server.stdout is not None
        answers = bool(select.select([server.stdout], [], [], _CHECK_TIMEOUT_S)[0])
        line = server.stdout.readline() if answers else ""
        if not line:
            if not answers:
                server.kill()
            lines = server.communicate(timeout=_CHECK_TIMEOUT_S)[1].strip().splitlines()
            how = f"ended with status {server.wait()}" if answers else f"is not ready after {_CHECK_TIMEOUT_S} s"
            yield Finding(BROKEN, "session", lines[-1] if lines else f"the server {how}")
            return
        ready = time.monotonic()
        with connect("127.0.0.1", json.loads(line)["port"], key="", timeout=_CHECK_TIMEOUT_S) as session:
            echoed = session.get_function("testing.echo")("through a session")
        took = time.monotonic() - ready
        if echoed != "through a session":
            yield Finding(BROKEN, "session", f"sent text came back as {echoed!r}")
        else:
            yield Finding(OK, "session", f"the server starts in {ready - started:.1f} s, a session takes {took:.2f} s")
    finally:
        server.kill()
        server.communicate()


_SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from rpcsys.server.__main__ import main; sys.exit(main())"
)
_CHECKS: Tuple[Callable[[Sequence[str]], Iterator[Finding]], ...] = (
    _board, _standard_library, _folder, _memory, _system, _tls, _speedups, _tvm, _drivers, _devices, _packages,
    _tracker, _session,
)  # fmt: skip


def _loaded(name: str, paths: List[str]) -> Finding:
    """Load ``paths`` in order in a process of its own; report on the last."""
    done = _run_apart(_LOAD, *paths)
    if done.returncode == 0:
        return Finding(OK, name, paths[-1])
    why = _last_line(done.stderr, done)
    how = next((packages for library, packages in _PROVIDERS.items() if library in why), "")
    return Finding(BROKEN, name, "; ".join(filter(None, [why, how])))


def _run_apart(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, capture_output=True, text=True, timeout=_CHECK_TIMEOUT_S, env=env, check=False)


def _last_line(text: str, done: subprocess.CompletedProcess[str]) -> str:
    return (text.strip().splitlines() or [f"loading it ended the process (status {done.returncode})"])[-1]


def _value(arguments: Sequence[str], flag: str) -> Optional[str]:
    """The last value of a flag that takes one; None if it is absent."""
    values = [after for word, after in zip(arguments, arguments[1:]) if word == flag]
    values += [word[len(flag) + 1 :] for word in arguments if word.startswith(flag + "=")]
    return values[-1] if values else None
