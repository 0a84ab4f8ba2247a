"""The device server at work: one loop that owns the sockets and carries out what the state decides.

It only carries messages: sessions run in processes of their own, so whatever a session does, the loop goes
on to answer everyone else. Nothing in it blocks; what has to wait for a disk has a thread of its own.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from rpcsys import serve
from rpcsys.errors import ConfigError
from rpcsys.server.cache import Cache
from rpcsys.server.capabilities import kinds, labels, loads
from rpcsys.server.config import ServerConfig
from rpcsys.server.sandbox import cgroups, limits, mount_namespace, processes, work_folders
from rpcsys.server.sandbox.messages import RPCSYS, TVM_END, Job
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor import metrics
from rpcsys.server.supervisor.children import Spawner
from rpcsys.server.supervisor.cleaning import Cleaner
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.health import CHECK, RECOVER
from rpcsys.server.supervisor.health_commands import HealthCommands
from rpcsys.server.supervisor.http import Page, Web
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.memory_watch import MemoryWatch
from rpcsys.server.supervisor.metrics import ServerMetrics
from rpcsys.server.supervisor.proxies import ProxyConnections
from rpcsys.server.supervisor.records import Policy
from rpcsys.server.supervisor.state import DeviceServerState
from rpcsys.server.supervisor.tracker_link import TrackerLink

log = logging.getLogger("rpcsys.server")


class DeviceServer:
    """A device server from its start to its end: make one, then :meth:`run` it."""

    def __init__(self, config: ServerConfig) -> None:
        """Take a port and a folder. Raises PortRangeError or ConfigError if there is none."""
        if not processes.become_subreaper():
            log.warning("this system has no subreapers: what a session leaves running goes on")
        self._config = config
        if config.cache:
            Cache(config.cache, config.cache_bytes)  # a folder that cannot be used is said now
        listener = None if config.proxies else serve.bind(config.host, config.port, config.port_end)
        web = serve.bind(config.host, config.http_port, config.http_port + 1) if config.http_port else None
        self._port: int | None = None
        if listener is not None:
            self._host, self._port = listener.getsockname()[:2]
        self._folder = _make_folder()
        self._cgroups = _make_cgroups(config)
        self._end: do.Exit | None = None
        self._loop = Loop()
        self._cleaner = Cleaner(self._loop, self._folder, config.slots)
        self._clients = Clients(self._loop, listener, config.key)
        self._spawner = Spawner(self._loop, self._settings())
        starved = functools.partial(cgroups.starved, self._cgroups)
        self._memory = MemoryWatch(self._loop, config.session_memory, self._spawner.roots, starved)
        self._commands = HealthCommands(self._loop, {CHECK: config.health_check, RECOVER: config.recover})
        self._proxies = ProxyConnections(self._loop, config.proxies, self._clients.adopt)
        trackers = config.proxies or ([config.tracker] if config.tracker else ())
        self._tracker = TrackerLink(self._loop, trackers, self._card()) if trackers else None
        self._deployed_key = f"serve:{self._proxies.identity}" if config.proxies else ""
        self._state = DeviceServerState(_policy(config, self._deployed_key))
        self._on_action = self._actions()
        self._metrics = ServerMetrics(config.key, self._gauges)
        self._web = None if web is None else Web(self._loop, web, self._pages())
        self._watchdog = serve.Watchdog()

    def run(self) -> int:
        """Serve until told to stop; the exit status. Raises ConfigError if sessions cannot be served at all."""
        limits.set_oom_score(limits.OOM_LAST)
        signals = serve.Signals(signal.SIGUSR1)
        self._loop.add(signals.fileno(), lambda: self._stop(signals))
        try:
            self._carry_out(self._state.start())
            self._cleaner.tidy()  # now: the first zygote is a copy of this process, while it has one thread
            cgroups.tidy(self._cgroups)
            self._show_life()
            while self._end is None:
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
        if self._end.why:
            raise ConfigError(self._end.why)
        return 0

    def _report_deployed(self, modules: tuple[Any, ...], workers: int) -> None:
        if self._tracker is not None:
            self._tracker.report_deployed(self._deployed_key, modules, workers)

    def _settings(self) -> dict[str, Any]:
        """What a zygote and its children need to know."""
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
            "cgroups": self._cgroups,
        }

    def _card(self) -> dict[str, Any]:
        """What a tracker is told."""
        config = self._config
        return {
            "key": config.key,
            "name": f"{config.name}:{self._port or config.key}",
            "slots": config.slots,
            "port": self._port,
            "address": config.custom_addr,
            "labels": {**labels(config.name), **dict(config.labels)},
            "loads": (*loads(), *kinds(pickle=config.allow_pickle)),
            "identity": os.urandom(16).hex(),  # known to nobody else: it gives the name and the leases back
        }

    # Seen from outside

    def _pages(self) -> dict[str, Page]:
        return {
            "/healthz": lambda: ("text/plain; charset=utf-8", b"ok\n"),
            "/metrics": lambda: (metrics.TYPE, self._metrics.page()),
        }

    def _gauges(self) -> dict[str, float]:
        """What `/metrics` says of the moment."""
        slots = self._state.slots
        return {
            "slots": self._config.slots,
            "free": slots.free,
            "running": len(slots.sessions),
            "clean": float(not slots.processes.unclean),
            "parked": self._state.parking.waiting,
        }

    def _log(self, action: do.Log) -> None:
        told = dict(action.fields)
        extra = {"event": action.event, "fields": told} if action.event else {"stranger": action.stranger}
        log.log(getattr(logging, action.level.upper()), "%s", action.text, extra=extra)
        if action.event == "ended":
            self._metrics.ended(told["outcome"], told["lasted_s"], told["fault"])

    # The loop

    def _handle_events(self) -> None:
        """Have the state decide what follows from what has happened, and wait for what it waits for."""
        while self._loop.events and self._end is None:
            self._carry_out(self._state.handle(self._loop.events.popleft()))
        self._loop.call_at(self._state.deadline(), self._tick)

    def _tick(self) -> None:
        self._loop.post(ev.Tick)

    def _show_life(self) -> None:
        self._watchdog.look(self._loop.now())
        self._loop.call_at(self._watchdog.due(), self._show_life)

    def _stop(self, signals: serve.Signals) -> None:
        numbers = signals.received()
        if numbers:
            patient = set(numbers) == {signal.SIGUSR1}
            if not patient:
                serve.notify("STOPPING=1")
            self._loop.post(ev.StopAsked, patient=patient)

    # Actions

    def _actions(self) -> dict[type, Callable[[Any], object]]:
        """What carries out which action."""
        clients, spawner, proxies = self._clients, self._spawner, self._proxies
        return {
            do.StartZygote: lambda _: spawner.start(),
            do.KillZygote: lambda _: spawner.kill_zygote(),
            do.Spawn: lambda action: spawner.spawn(action.child, action.kind),
            do.Kill: lambda action: spawner.kill(action.child),
            do.Extend: lambda action: spawner.send_json(action.child, {"until": action.until}),
            do.Start: self._start,
            do.Finish: self._finish,
            do.RunCommand: lambda action: self._commands.run(action.what),
            do.Refuse: lambda action: clients.refuse(action.conn, action.how),
            do.Drop: lambda action: clients.drop(action.conn),
            do.TurnAway: lambda action: clients.turn_away(
                action.conn, action.kind, action.text, unanswered=action.fresh
            ),
            do.StopListening: lambda _: clients.stop_listening(),
            do.Park: lambda action: proxies.park(action.number, action.proxy, action.key, action.offered),
            do.Unpark: lambda action: proxies.unpark(action.number),
            do.Announce: self._announce,
            do.Log: self._log,
            do.Exit: self._exit,
            **self._deployment_actions(),
            **self._tracker_actions(),
        }

    def _deployment_actions(self) -> dict[type, Callable[[Any], object]]:
        if not self._config.deploy:
            return {}
        from rpcsys.server.supervisor.deployments_io import DeploymentsIo

        return DeploymentsIo(self._loop, self._config, self._clients, self._spawner, self._report_deployed).actions()

    def _tracker_actions(self) -> dict[type, Callable[[Any], object]]:
        link = self._tracker
        if link is None:
            return {}
        return {
            do.Connect: lambda action: link.connect(action.proxy),
            do.Disconnect: lambda _: link.close(),
            do.RegisterServer: lambda action: link.register(action.running),
            do.Offer: lambda action: link.offer(action.matchkey),
            do.MakeKey: lambda _: link.make_key(),
            do.Poll: lambda _: link.poll(),
            do.ReportStart: link.report,
            do.ReportEnd: link.report,
            do.ReportHealth: lambda action: link.report_health(action.problem),
        }

    def _carry_out(self, actions: list[do.Action]) -> None:
        for action in actions:
            self._on_action[type(action)](action)

    def _start(self, action: do.Start) -> None:
        cpus = frozenset(self._config.cpus[action.slot] if self._config.cpus else ())
        try:
            if action.note:
                self._cleaner.note()
            folder = self._workdir(action)
            if cpus:
                limits.keep_on(self._spawner.roots(action.child), cpus)
                self._keep_grouped_on(action.child, cpus)
            self._spawner.give(action.child, self._job(action, folder), self._clients.descriptor(action.conn))
            self._memory.add(action.child, cpus)
        except OSError as error:
            self._loop.post(ev.StartFailed, action.session, error.strerror or str(error))

    def _keep_grouped_on(self, child: int, cpus: frozenset[int]) -> None:
        try:
            cgroups.keep_on(self._cgroups, child, cpus)
        except OSError as error:
            log.warning("a session's cpuset was not set (%s): polling holds its CPUs", error.strerror)

    def _workdir(self, action: do.Start) -> str:
        if action.kind == TVM_END:
            return self._folder  # its session's own may be full, or gone
        return self._cleaner.make_folder(action.session)

    def _job(self, action: do.Start, workdir: str) -> Job:
        config = self._config
        options = {
            "tvm": config.tvm,
            "load_library": list(config.load_library),
            "imports": list(config.imports),
            "allow_pickle": config.allow_pickle,
            "log": True,
            "cache": [config.cache, config.cache_bytes] if config.cache else None,
        }
        return Job(
            kind=action.kind,
            reply=self._clients.answer(action.conn, action.kind == RPCSYS),
            workdir=workdir,
            key=config.key,
            peer=action.peer,
            limit_s=action.limit_s,
            lease=action.lease,
            options=options,
            words=action.words,
        )

    def _finish(self, action: do.Finish) -> None:
        if action.error:
            kind, text = action.error
            self._clients.send_error(action.conn, kind, text, unanswered=action.unanswered)
        self._clients.drop(action.conn)
        self._cleaner.start(action.session, action.sweep)

    def _announce(self, action: do.Announce) -> None:
        if self._port is not None and not self._host.startswith("127.") and self._host != "::1":
            log.warning("listening on %s: whoever reaches port %d may run code here", self._host, self._port)
        host = self._config.proxies[0][0] if self._config.proxies else self._config.host
        serve.announce("server", host, self._port, http_port=self._config.http_port or None)

    def _exit(self, action: do.Exit) -> None:
        self._end = action


def _needed(config: ServerConfig) -> list[str]:
    """Paths that a session must still find where they are."""
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


def _policy(config: ServerConfig, deployed_key: str) -> Policy:
    return Policy(
        config.key,
        config.slots,
        tracked=bool(config.tracker or config.proxies),
        tvm=config.tvm != "off",
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
    """This server's cgroups, if it has limits to hold; what holds them is said."""
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
