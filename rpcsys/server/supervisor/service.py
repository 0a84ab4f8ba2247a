"""The device server: one loop that owns the sockets and carries out the state's actions.

Sessions run in processes of their own, so no session can stop the loop. Nothing in the loop blocks: work that waits
for a disk has a thread.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rpcsys import __version__, serve
from rpcsys.errors import ConfigError
from rpcsys.server.cache import Cache
from rpcsys.server.capabilities import kinds, labels, loads, versions
from rpcsys.server.config import ServerConfig
from rpcsys.server.sandbox import cgroups, limits, mount_namespace, processes, work_folders
from rpcsys.server.sandbox.messages import RPCSYS, TVM_END, Job
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.children import Spawner
from rpcsys.server.supervisor.cleaning import Cleaner
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.health import CHECK, RECOVER
from rpcsys.server.supervisor.health_commands import HealthCommands
from rpcsys.server.supervisor.http import ServerMetrics, Web
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.memory_watch import MemoryWatch
from rpcsys.server.supervisor.proxies import ProxyConnections
from rpcsys.server.supervisor.records import Policy
from rpcsys.server.supervisor.state import DeviceServerState

if TYPE_CHECKING:
    from rpcsys.server.supervisor.tracker_link import TrackerLink

log = logging.getLogger("rpcsys.server")


class DeviceServer:
    """A device server from its start to its end: make one, then :meth:`run` it."""

    def __init__(self, config: ServerConfig) -> None:
        """Take a port and a folder. Raises PortRangeError or ConfigError if there is none."""
        if not processes.become_subreaper():
            log.warning("this system has no subreapers: processes that a session leaves behind go on running")
        self._config = config
        if config.cache:
            Cache(config.cache, config.cache_bytes)  # raises now for a folder that cannot be used
        listener = None if config.proxies else serve.bind(config.host, config.port, config.port_end)
        page = config.http_port
        web = serve.bind(config.host, page, page + 1, "--http-port") if page else None
        self._port: int | None = None
        if listener is not None:
            self._host, self._port = listener.getsockname()[:2]
        self._folder = _make_folder()
        self._cgroups = _make_cgroups(config)
        self._why: str | None = None  # why the server ends: "" for no failure, None while it serves
        self._loop = Loop()
        self._cleaner = Cleaner(self._loop, self._folder, config.slots)
        self._clients = Clients(self._loop, listener, config.key)
        self._spawner = Spawner(self._loop, self._settings())
        starved = functools.partial(cgroups.starved, self._cgroups)
        self._memory = MemoryWatch(self._loop, config.session_memory, self._spawner.roots, starved)
        self._commands = HealthCommands(self._loop, {CHECK: config.health_check, RECOVER: config.recover})
        self._proxies = ProxyConnections(self._loop, config.proxies, self._clients.adopt)
        trackers = config.proxies or ([config.tracker] if config.tracker else ())
        self._tracker: TrackerLink | None = None
        if trackers:
            from rpcsys.server.supervisor.tracker_link import TrackerLink  # 0.6 MB that other servers save

            self._tracker = TrackerLink(self._loop, trackers, self._card(), proxies=bool(config.proxies))
        self._deployed_key = f"serve:{self._proxies.identity}" if config.proxies else ""
        self._state = DeviceServerState(_policy(config, self._deployed_key))
        self._options = _session_options(config)
        self._on_action = self._actions()
        about = {"rpcsys": __version__, **versions()} if page else {}
        self._metrics = ServerMetrics(config.key, self._gauges, about)
        self._web = None if web is None else Web(self._loop, web, {"/healthz": _alive, "/metrics": self._metrics.page})
        self._watchdog = serve.Watchdog()

    def run(self) -> int:
        """Serve until a signal stops the server; the exit status. Raises ConfigError if no session can be served."""
        limits.set_oom_score(limits.OOM_LAST)
        signals = serve.Signals(signal.SIGUSR1)
        self._loop.add(signals.fileno(), lambda: self._stop(signals))
        try:
            self._carry_out(self._state.start())
            self._cleaner.tidy()  # starts a thread: only now, because the first zygote is forked from one thread
            cgroups.tidy(self._cgroups)
            self._notify_watchdog()
            while self._why is None:
                self._loop.run_once(0.0 if self._loop.events else None)
                self._handle_events()
            serve.notify("STOPPING=1")
        finally:
            self._commands.kill()
            self._spawner.leave()
            if self._tracker is not None:
                self._tracker.finish()
            if self._web is not None:
                self._web.close()
            for _ in work_folders.removal(self._folder):
                pass
            cgroups.finish(self._cgroups)
            signals.close()
        if self._why:
            raise ConfigError(self._why)
        return 0

    def _settings(self) -> dict[str, Any]:
        """The settings of a zygote and its children."""
        config = self._config
        return {
            "supervisor": os.getpid(),
            "fork": config.fork,
            "preload": list(config.preload),
            "imports": list(config.imports),
            "folder": self._folder,
            "isolate": config.isolation,
            "read_only": config.read_only,
            "keep": mount_namespace.hidden(_needed(config)),
            "memory": config.session_memory,
            "shared": config.cache,
            "deploy": config.deploy,
            "confined": config.isolation,
            "tvm": config.tvm,
            "tvm_library": config.tvm_library,
            "able": (config.allow_pickle, bool(config.cache), bool(config.deploy)),
            "cgroups": self._cgroups,
        }

    def _card(self) -> dict[str, Any]:
        """The fields of a registration with a tracker."""
        config = self._config
        name = config.name or os.uname().nodename or "server"
        return {
            "key": config.key,
            "name": name,
            "spare": "" if config.name else f"{name}:{self._port or config.key}",
            "slots": config.slots,
            "port": self._port and (config.custom_port or self._port),
            "address": config.custom_addr,
            "labels": labels(name, dict(config.labels)),
            "loads": (*loads(), *kinds(pickle=config.allow_pickle)),
            "identity": os.urandom(16).hex(),  # secret: after a new connection it proves who has the name and leases
        }

    def _gauges(self) -> dict[str, float]:
        """The gauges of `/metrics`, by name."""
        slots = self._state.slots
        return {
            "slots": self._config.slots,
            "free": slots.free,
            "running": len(slots.sessions),
            "clean": float(not slots.processes.unclean),
            "parked": self._state.parking.waiting,
        }

    def _handle_events(self) -> None:
        """Give all queued events to the state, carry out its actions, and set the timer to its deadline."""
        while self._loop.events and self._why is None:
            self._carry_out(self._state.handle(self._loop.events.popleft()))
        self._loop.call_at(self._state.deadline(), self._tick)

    def _tick(self) -> None:
        self._loop.post(ev.Tick)

    def _notify_watchdog(self) -> None:
        self._watchdog.look(self._loop.now())
        self._loop.call_at(self._watchdog.due(), self._notify_watchdog)

    def _stop(self, signals: serve.Signals) -> None:
        numbers = signals.received()
        if numbers:
            patient = set(numbers) == {signal.SIGUSR1}
            if not patient:
                serve.notify("STOPPING=1")
            self._loop.post(ev.StopAsked, patient=patient)

    def _actions(self) -> dict[type, Callable[..., object]]:
        """The function that carries out each kind of action, with the action's fields as arguments."""
        config, clients, spawner, proxies = self._config, self._clients, self._spawner, self._proxies
        table: dict[type, Callable[..., object]] = {
            do.StartZygote: spawner.start,
            do.KillZygote: spawner.kill_zygote,
            do.Spawn: spawner.spawn,
            do.Kill: spawner.kill,
            do.Extend: lambda child, until: spawner.send_json(child, {"until": until}),
            do.Start: self._start,
            do.Finish: self._finish,
            do.RunCommand: self._commands.run,
            do.Refuse: clients.refuse,
            do.Drop: clients.drop,
            do.TurnAway: clients.turn_away,
            do.StopListening: clients.stop_listening,
            do.Park: proxies.park,
            do.Unpark: proxies.unpark,
            do.Announce: self._announce,
            do.Log: self._log,
            do.Exit: self._exit,
        }
        if config.deploy:
            from rpcsys.server.supervisor.deployments_io import DeploymentsIo

            table.update(DeploymentsIo(self._loop, config, clients, spawner, self._report_deployed).actions())
        return table if self._tracker is None else {**table, **self._tracker.actions()}

    def _carry_out(self, actions: list[do.Action]) -> None:
        for action in actions:
            self._on_action[type(action)](*vars(action).values())

    def _report_deployed(self, modules: tuple[Any, ...], workers: int) -> None:
        if self._tracker is not None:
            self._tracker.report_deployed(self._deployed_key, modules, workers)

    def _start(
        self,
        session: int,
        conn: int,
        child: int,
        kind: str,
        peer: str,
        limit_s: float | None,
        lease: str | None,
        slot: int,
        note: bool,
        words: str,
        longest_s: float | None,
    ) -> None:
        cpus = frozenset(self._config.cpus[slot] if self._config.cpus else ())
        try:
            if note:
                self._cleaner.note()
            # The child that explains a session's end works outside its directory, which may be full or removed.
            folder = self._folder if kind == TVM_END else self._cleaner.make_folder(session)
            if cpus:
                limits.keep_on(self._spawner.roots(child), cpus)
                self._keep_grouped_on(child, cpus)
            reply = self._clients.answer(conn, kind == RPCSYS)
            job = Job(kind, reply, folder, self._config.key, peer, limit_s, lease, self._options, words, longest_s)
            self._spawner.give(child, job, self._clients.descriptor(conn))
            self._memory.add(child, cpus)
        except OSError as error:
            self._loop.post(ev.StartFailed, session, error.strerror or str(error))

    def _keep_grouped_on(self, child: int, cpus: frozenset[int]) -> None:
        try:
            cgroups.keep_on(self._cgroups, child, cpus)
        except OSError as error:
            log.warning("a session's cpuset was not set (%s): polling holds its CPUs", error.strerror)

    def _finish(self, session: int, conn: int, error: tuple[str, ...], sweep: str, unanswered: bool) -> None:
        if error:
            kind, text = error
            self._clients.send_error(conn, kind, text, unanswered)
        self._clients.drop(conn)
        self._cleaner.start(session, sweep)

    def _announce(self) -> None:
        if self._port is not None and not self._host.startswith("127.") and self._host != "::1":
            log.warning("listening on %s: anyone who reaches port %d may run code here", self._host, self._port)
        host = self._config.proxies[0][0] if self._config.proxies else self._config.host
        serve.announce("server", host, self._port, http_port=self._config.http_port or None)

    def _log(self, level: str, text: str, event: str, fields: tuple[tuple[str, Any], ...], stranger: str) -> None:
        values = dict(fields)
        extra = {"event": event, "fields": values} if event else {"stranger": stranger}
        log.log(getattr(logging, level.upper()), "%s", text, extra=extra)
        if event == "ended":
            self._metrics.ended(values["outcome"], values["lasted_s"], values["fault"])

    def _exit(self, why: str) -> None:
        self._why = why


def _needed(config: ServerConfig) -> list[str]:
    """Paths that a session needs, and that its own mounts must not hide."""
    libraries = None
    if config.tvm == "ctypes":
        from rpcsys.ffi import library

        libraries = library.find(config.tvm_library)
    return [
        *sys.path,
        sys.prefix,
        sys.base_prefix,
        *config.load_library,
        config.tvm_library or "",
        *(path for path in libraries or () if path),  # also where the folder holds links to them
        config.cache or "",
        config.deploy or "",
    ]


def _session_options(config: ServerConfig) -> dict[str, Any]:
    return {
        "tvm": config.tvm,
        "load_library": list(config.load_library),
        "imports": list(config.imports),
        "allow_pickle": config.allow_pickle,
        "log": True,
        "cache": config.cache_options,
        "deploy": bool(config.deploy),
    }


def _alive() -> tuple[str, bytes]:
    return "text/plain; charset=utf-8", b"ok\n"


def _policy(config: ServerConfig, deployed_key: str) -> Policy:
    return Policy(
        config.key,
        config.slots,
        tracked=bool(config.tracker or config.proxies),
        tvm=config.tvm != "off",
        tvm_apart=config.tvm_apart,
        grace_s=config.grace_s,
        import_s=config.import_timeout_s,
        memory=config.session_memory,
        health_check=bool(config.health_check),
        recover=bool(config.recover),
        deploy=bool(config.deploy),
        deployed_key=deployed_key,
        proxies=tuple("{}:{}".format(*proxy) for proxy in config.proxies),
    )


def _make_folder() -> str:
    parent = os.environ.get("TMPDIR") or "/tmp"
    try:
        return work_folders.make_folder(parent)
    except OSError as error:
        raise ConfigError(f"cannot make a folder for sessions in {parent}: {error.strerror} (set TMPDIR?)") from None


def _make_cgroups(config: ServerConfig) -> cgroups.Folders:
    """Make this server's cgroups if it has limits; log whether cgroups or polling hold them."""
    flags = {"memory": config.session_memory, "cpuset": config.cpus}
    wanted = [name for name, flag in flags.items() if flag]
    if not wanted:
        return {}
    found, why = cgroups.find(wanted)
    if why:
        log.info("polling holds the limits of sessions: no cgroups (%s)", why)
    else:
        also = "" if len(found) == len(wanted) else "; polling holds the other"
        log.info("the kernel's cgroups hold the limits of sessions: %s%s", ", ".join(found), also)
    return found
