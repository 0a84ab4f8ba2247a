"""Starts, watches and stops daemons: ours, and TVM's for comparison.

Each daemon leads its own process group and writes its standard error to a file. The whole group is killed at the end
of the test, or when the test run itself is killed (:mod:`tests.live.reaper`). This module does not import rpcsys: a
fault of the package cannot hide here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from rpcsys.secure_lab import hold_port
from tests.live import invariant
from tests.live.flavours import GATEWAY, PROXIES, SERVERS, TRACKERS, Flavour
from tests.live.leftovers import Watched
from tests.live.probe import KEEPERS, TrackerProbe, asker
from tests.live.processes import alive, children, descendants, is_init
from tests.live.ways import ALLOWED, CONNECTED, DEFAULT, OPEN

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0  # importing tvm takes two seconds, and more where many tests run at once
_HELD: list[socket.socket] = []
STOP_S = 15.0
LEAD = ("--tracker", "--next")  # the flags that name a tracker, or a proxy on the way to one
Address = tuple[str, int]
Found = TypeVar("Found")


def wait_until(predicate: Callable[[], Found], deadline_s: float, what: str, every_s: float = 0.02) -> Found:
    """Poll until ``predicate`` returns a true value; that value. AssertionError with ``what`` after ``deadline_s``."""
    end = time.monotonic() + deadline_s
    while True:
        found = predicate()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what} (last answer: {found!r})")
        time.sleep(every_s)


# --- processes ---------------------------------------------------------------------------------


def outside(pid: int, folder: str) -> int:
    """Translate ``pid`` of another PID namespace, of a process that works in ``folder``; ``pid`` if none is found."""
    for process in psutil.process_iter():
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            if re.search(rf"^NSpid:.*\t{pid}$", status, re.MULTILINE) and process.cwd() == folder:
                return process.pid
        except (OSError, psutil.Error):
            pass  # it is gone meanwhile
    return pid


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL to the processes that still live."""
    for pid in pids:
        try:
            psutil.Process(pid).kill()
        except psutil.NoSuchProcess:
            pass


def rss_mb(pids: Iterable[int]) -> float:
    """The sum of the processes' resident memory in MB; a shared page counts once per process."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 1e6


def pss_mb(pids: Iterable[int]) -> float:
    """The processes' memory together in MB; a shared page counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            total += psutil.Process(pid).memory_full_info().pss
    return total / 1e6


def anonymous_mb(pids: Iterable[int]) -> float:
    """The processes' memory together in MB, without pages of files: other programs share those."""
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found = re.search(r"^Pss_Anon: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            assert found, "this kernel does not count anonymous memory"
            total += 1024 * int(found[1])
    return total / 1e6


def free_port() -> int:
    """A port for a daemon that is told its number: nobody else is given it while this process runs."""
    _HELD.append(hold_port("127.0.0.1"))
    return _HELD[-1].getsockname()[1]


# --- daemons -----------------------------------------------------------------------------------


class Reaper:
    """The reaper process of this test run; it starts with the first daemon."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None

    def note(self, sign: str, pid: int) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))],
                stdin=subprocess.PIPE,
                start_new_session=True,
                text=True,
                bufsize=1,
            )
        self._process.stdin.write(f"{sign}{pid}\n")


reaper = Reaper()


@dataclass
class Daemon:
    """A process that this run has started. ``address`` and ``ready`` are set once it serves."""

    name: str
    process: subprocess.Popen
    stdout_path: Path
    stderr_path: Path
    address: Address | None = None
    ready: dict[str, Any] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def where(self) -> str:
        """``host:port``, for flags."""
        return "{}:{}".format(*self.address)

    def stderr(self) -> str:
        return self.stderr_path.read_text(errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def children(self) -> list[psutil.Process]:
        """The processes directly below this one."""
        return [psutil.Process(child) for child in children(self.pid) if alive(child)]

    def tree(self, inits: bool = True) -> list[int]:
        """This process and its descendants; without ``inits``, PID namespaces' inits and their parent are left out."""
        return [pid for pid in (self.pid, *descendants(self.pid)) if inits or not is_init(pid)]

    def kill(self) -> None:
        """SIGKILL to this process only; its children get no signal."""
        self.process.kill()
        self.process.wait(STOP_S)

    def terminate(self, deadline_s: float = STOP_S) -> int:
        """SIGTERM, and the exit status."""
        self.process.terminate()
        return self.process.wait(deadline_s)

    def destroy(self) -> None:
        """Kill it in any state, with its descendants and its whole process group."""
        invariant.running.forget(self.pid)
        below = descendants(self.pid) if self.running() else []  # else another process may have its pid now
        if self.running() or not psutil.pid_exists(self.pid):
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        kill_all(below)
        self.process.wait(STOP_S)
        reaper.note("-", self.pid)

    def await_ready_line(self, within_s: float = START_S) -> None:
        """Read its ready line: one line of JSON with its address."""
        line = wait_until(self._first_line, within_s, f"ready line of {self.name}")
        self.ready = json.loads(line)
        if self.ready["port"] is not None:
            self.address = ("127.0.0.1", self.ready["port"])
        if self.ready["pid"] == self.pid:  # not a pid of another PID namespace
            invariant.running.watch(Watched.of(self.ready["ready"], self.ready["port"], self.pid))

    def await_listening(self, port: int) -> None:
        """Wait until TVM's daemon has logged the port and listens on it."""
        if "proxy" not in self.name:  # TVM's proxy logs nothing
            wait_until(lambda: self._logged(rf"bind to \S+:{port}\b"), START_S, f"{self.name} binds")
        wait_until(lambda: self._accepts(port), START_S, f"{self.name} listens")
        self.address = ("127.0.0.1", port)

    def _first_line(self) -> str:
        text = self.stdout_path.read_text()
        self._check_running()
        return text if text.endswith("\n") else ""

    def _logged(self, pattern: str) -> bool:
        self._check_running()
        return re.search(pattern, self.stderr()) is not None

    def _accepts(self, port: int) -> bool:
        self._check_running()
        return any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            for pid in self.tree()
            for connection in psutil.Process(pid).net_connections("tcp")
        )

    def _check_running(self) -> None:
        if not self.running():
            raise AssertionError(f"{self.name} ended with status {self.process.returncode}:\n{self.stderr()}")


@dataclass
class Desk(Daemon):
    """``rpcsys connect``, at whose address TVM's clients find ``tracker``. Flags of daemons name the tracker itself."""

    tracker: Daemon | None = None

    @property
    def where(self) -> str:
        return self.tracker.where


class Daemons:
    """Starts daemons, keeps their files in ``folder``, and stops all of them together.

    ``way``: how TVM's clients reach trackers (`tests.live.ways`). In all but the open one trackers serve a closed lab,
    whose keeper is the test, and whose boards are the servers (`tests.live.labs`).
    """

    def __init__(self, folder: Path, way: str = DEFAULT) -> None:
        self.folder = folder
        self.way = way
        self.started: list[Daemon] = []
        self._numbers = itertools.count()
        self._labs: dict[int, Any] = {}  # by the ports of their trackers, and of proxies that lead there

    def launch(self, name: str, command: Sequence[str], **popen: Any) -> Daemon:
        """Start any command as a daemon; returns at once."""
        base = self.folder / f"{next(self._numbers):02d}-{name}"
        out, err = base.with_suffix(".stdout"), base.with_suffix(".stderr")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.folder)}
        environment.update(popen.pop("env", {}))
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                cwd=popen.pop("cwd", self.folder),
                env=environment,
                start_new_session=True,
                **popen,
            )
        reaper.note("+", process.pid)
        invariant.running.others.add(process.pid)
        daemon = Daemon(name, process, out, err)
        self.started.append(daemon)
        return daemon

    def tracker(self, *flags: str, flavour: str = "ours", port: int = 0, **popen: Any) -> Daemon:
        """A tracker on loopback that answers; at ``port``, or at any free one."""
        lab = None
        if self.way != OPEN and flavour == "ours" and "--lab" not in flags:
            lab = self._lab(port)
            flags, port = (*flags, "--lab", str(lab.path)), lab.port
        daemon = self._serve("tracker", TRACKERS[flavour], flags, port, popen)
        if "--lab" not in flags:
            KEEPERS.pop(daemon.address[1], None)  # the lab of an earlier test had this port
        TrackerProbe(daemon.address).close()
        return self.desk(daemon, lab.desk) if lab is not None and self.way == CONNECTED else daemon

    def desk(self, tracker: Daemon, environment: dict[str, str], *flags: str) -> Desk:
        """A forwarder to a lab's tracker, ready."""
        command = (sys.executable, "-m", "rpcsys.forward", "--listen", "127.0.0.1:0", "--tracker", tracker.where)
        launched = self.launch("connect", (*command, *flags), env=environment)
        desk = Desk(launched.name, launched.process, launched.stdout_path, launched.stderr_path, tracker=tracker)
        self.started[-1] = desk
        desk.await_ready_line()
        return desk

    def lab_tracker(self, *flags: str, port: int) -> Daemon:
        """The tracker of a lab on loopback at ``port``."""
        return self._serve("tracker", TRACKERS["ours"], flags, port, {})

    def proxy(self, *flags: str, flavour: str = "ours", port: int = 0, **popen: Any) -> Daemon:
        """A proxy on loopback; at ``port``, or at any free one. Ours is a member of its tracker's lab."""
        proxy = self._serve("proxy", PROXIES[flavour], flags, port, popen)
        lab = self._lab_of(flags)
        if lab is not None:
            self._labs[proxy.address[1]] = lab
            lab.reached_at(proxy.address[1])
        return proxy

    def gateway(self, *flags: str, port: int = 0, flavour: Flavour = GATEWAY, **popen: Any) -> Daemon:
        """An inference gateway on loopback: HTTP at ``port`` or any, gRPC at any (its ready line's ``grpc_port``)."""
        if "--grpc-port" not in flags:
            flags = (*flags, "--grpc-port", str(free_port()))
        return self._serve("gateway", flavour, flags, port, popen)

    def behind(self, proxy: Daemon, key: str, *flags: str, flavour: str = "tvm", **popen: Any) -> Daemon:
        """A device server that connects to the proxy; returns at once."""
        where = ("--host", proxy.address[0], "--port", str(proxy.address[1]), "--through-proxy")
        flags = ("--key", key, *flags)
        flags = (*flags, *self._membership(SERVERS[flavour], flags, self._labs.get(proxy.address[1])))
        return self.launch(f"server-{key}", (*SERVERS[flavour].command, *where, *flags), **popen)

    def server(
        self,
        key: str,
        *flags: str,
        tracker: Daemon | None = None,
        flavour: str = "ours",
        offers: int = 1,
        port: int = 0,
        **popen: Any,
    ) -> Daemon:
        """A device server on loopback, at ``port`` or any; with a tracker, wait until ``offers`` slots are free."""
        if isinstance(tracker, Desk):
            tracker = tracker.tracker
        if tracker is not None:
            flags = (*flags, "--tracker", tracker.where)
        daemon = self._serve(f"server-{key}", SERVERS[flavour], ("--key", key, *flags), port, popen)
        if tracker is not None:
            wait_free(tracker, key, offers, START_S)
            invariant.running.idle(daemon.pid)
        return daemon

    def reach(self, name: str, flavour: str, *flags: str, port: int) -> Daemon:
        """A device server with ``flags``, at ``port`` or behind the proxy at ``port``; ready."""
        return self._serve(name, SERVERS[flavour], flags, port, {})

    def as_other(self, tracker: Daemon) -> contextlib.AbstractContextManager[None]:
        """This process is bob, where the tracker has a lab: what a client calls itself counts for nothing there."""
        lab = self._labs.get(tracker.address[1])
        return contextlib.nullcontext() if lab is None else lab.as_other()

    def stop(self) -> None:
        """Stop all daemons and wait for their end. AssertionError if one of them has left something."""
        try:
            left = invariant.stopped([daemon.process for daemon in self.started])
        finally:
            for lab in {*self._labs.values()}:
                lab.close()
            self._labs.clear()
            for daemon in reversed(self.started):
                daemon.destroy()
            logs = "".join(daemon.stderr()[-1000:] for daemon in self.started[:8])
            self.started.clear()
        assert not left, "left behind: " + "; ".join(left) + "\n" + logs

    def _lab(self, port: int) -> Any:
        """The closed lab of the tracker at ``port``, a new one at any port for 0."""
        from tests.live.labs import LabOfTests

        clear = self.way == ALLOWED
        lab = self._labs.get(port) or LabOfTests(self.folder / f"lab-{next(self._numbers)}", port, clear)
        self._labs[lab.port] = lab
        return lab

    def _lab_of(self, flags: Sequence[str], port: int = 0) -> Any:
        """The lab of the tracker that flags lead to, or that is reached at ``port``."""
        ports = [int(value.rpartition(":")[2]) for flag, value in itertools.pairwise(flags) if flag in LEAD]
        return self._labs.get(ports[0] if ports else port)

    def _membership(self, flavour: Flavour, flags: Sequence[str], lab: Any) -> tuple[str, ...]:
        """The flags with which a server or proxy of ours comes in to its lab. A gateway has this process's own."""
        if lab is None or "--lab" in flags or "ready" not in flavour.features:
            return ()
        if flavour in (*TRACKERS.values(), GATEWAY):
            return ()
        if flavour in PROXIES.values():
            return ("--lab", lab.proxy_file(f"proxy-{next(self._numbers)}")) if "--tracker" in flags else ()
        name = flags[flags.index("--name") + 1] if "--name" in flags else f"board-{next(self._numbers)}"
        # Users of sessions' own could not read this Python in root's home, which isolated sessions have open.
        own = ("--session-user", "none") if "--no-isolation" in flags else ()
        return ("--lab", lab.board_file(name, flags[flags.index("--key") + 1]), *own)

    def _serve(self, name: str, flavour: Flavour, flags: Sequence[str], port: int, popen: dict[str, Any]) -> Daemon:
        flags = (*flags, *self._membership(flavour, flags, self._lab_of(flags, port)))
        command = (*flavour.command, "--host", "127.0.0.1", *flags, "--port")
        if "ready" in flavour.features:
            last = (str(port), "--port-end", str(port + 1)) if port else ("0",)
            daemon = self.launch(name, (*command, *last), **popen)
            daemon.await_ready_line()
            return daemon
        port = port or hold_port("127.0.0.1").getsockname()[1]  # let go at once: TVM's daemons cannot share it
        last = (str(port), "--port-end", str(port + 1))
        daemon = self.launch(f"tvm-{name}", (*command, *last), **popen)
        daemon.await_listening(port)
        return daemon


def queue(tracker: Daemon, key: str) -> dict[str, int]:
    """The tracker's ``{"free": n, "pending": n}`` of a key; zeros for an unknown key."""
    with asker(tracker.address) as probe:
        return probe.summary()["queue_info"].get(key, {"free": 0, "pending": 0})


def wait_free(tracker: Daemon, key: str, count: int, deadline_s: float) -> float:
    """Wait until ``count`` slots of ``key`` are free; the seconds that it took."""
    start = time.monotonic()
    wait_until(lambda: queue(tracker, key)["free"] == count, deadline_s, f"{count} of {key!r} free")
    return time.monotonic() - start
