"""The device server: one loop that owns the sockets and carries out the state's actions.

Sessions run in processes of their own, so no session can stop the loop. Nothing in the loop blocks: work that waits
for a disk has a thread.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rpcsys import __version__, serve
from rpcsys.errors import ConfigError
from rpcsys.link.admission import Admission
from rpcsys.server.cache import Cache
from rpcsys.server.capabilities import kinds, labels, loads, versions
from rpcsys.server.config import ServerConfig
from rpcsys.server.devices.describing import Devices
from rpcsys.server.sandbox import cgroups, limits, mount_namespace, processes, session_user, work_folders
from rpcsys.server.sandbox.messages import RPCSYS, TVM_END, Job
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor import session_keys, session_paths
from rpcsys.server.supervisor.children import Spawner
from rpcsys.server.supervisor.cleaning import Cleaner
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.device_search import DeviceSearch
from rpcsys.server.supervisor.health import CHECK, RECOVER
from rpcsys.server.supervisor.health_commands import HealthCommands
from rpcsys.server.supervisor.http import ServerMetrics, Web, counted, gauges
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.memory_watch import MemoryWatch
from rpcsys.server.supervisor.proxies import ProxyConnections
from rpcsys.server.supervisor.records import Policy
from rpcsys.server.supervisor.state import DeviceServerState

if TYPE_CHECKING:
    from rpcsys.server.supervisor.pinning_io import GovernorPins
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
        if config.lab:
            from rpcsys.link import credential

            credential.check(config.lab)  # what is in it is read behind the zygote's fork
        listener = None if config.proxies else serve.bind(config.host, config.port, config.port_end)
        page = config.http_port
        web = serve.bind(config.host, page, page + 1, "--http-port") if page else None
        self._port: int | None = None
        if listener is not None:
            self._host, self._port = listener.getsockname()[:2]
        self._users = _make_users(config)
        self._folder = _make_folder(0o700 if self._users is None else 0o711)
        self._cgroups = _make_cgroups(config)
        self._why: str | None = None  # why the server ends: "" for no failure, None while it serves
        self._loop = Loop()
        self._cleaner = Cleaner(self._loop, self._folder, config.slots, self._users)
        self._clients = Clients(self._loop, listener, config.key, Admission(config.admit))
        self._spawner = Spawner(self._loop, self._settings())
        starved = functools.partial(cgroups.starved, self._cgroups)
        self._memory = MemoryWatch(self._loop, config.session_memory, self._spawner.roots, starved)
        self._commands = HealthCommands(self._loop, {CHECK: config.health_check, RECOVER: config.recover})
        self._pins: GovernorPins | None = None
        if config.pin_governor:
            from rpcsys.server.supervisor.pinning_io import GovernorPins

            cpus = config.cpus or (tuple(os.sched_getaffinity(0)),) * config.slots
            self._pins = GovernorPins(self._folder, cpus)
        self._proxies = ProxyConnections(self._loop, config.proxies, self._clients.adopt)
        trackers = config.proxies or ([config.tracker] if config.tracker else ())
        self._tracker: TrackerLink | None = None
        if trackers:
            from rpcsys.server.supervisor.tracker_link import TrackerLink  # 0.6 MB that other servers save

            make_key = session_keys.pinned if config.lab else session_keys.plain
            self._tracker = TrackerLink(
                self._loop, trackers, self._card(), make_key, proxies=bool(config.proxies), lab=config.lab,
                canary_limit_s=config.canary and config.canary.limit_s,
            )  # fmt: skip
        self._deployed_key = f"serve:{self._proxies.identity}" if config.proxies else ""
        self._options = _session_options(config)
        self._devices = DeviceSearch(self._loop, config, self._describe)
        self._state = DeviceServerState(_policy(config, self._deployed_key, self._devices.needed))
        self._on_action = self._actions()
        about = {"rpcsys": __version__, **versions()} if page else {}
        self._metrics = ServerMetrics(config.key, lambda: gauges(self._state), about, counted(self._state))
        self._web = None if web is None else self._pages(web)
        self._watchdog = serve.Watchdog()

    def run(self) -> int:
        """Serve until a signal stops the server; the exit status. Raises ConfigError if no session can be served."""
        limits.set_oom_score(limits.OOM_LAST)
        signals = serve.Signals(signal.SIGUSR1)
        self._loop.add(signals.fileno(), lambda: self._stop(signals))
        try:
            self._carry_out(self._state.start())
            self._read_secrets()
            if self._pins is not None:
                self._pins.warn()
            self._cleaner.tidy()  # starts a thread: only now, because the first zygote is forked from one thread
            cgroups.tidy(self._cgroups)
            self._notify_watchdog()
            while self._why is None:
                self._loop.run_once(0.0 if self._loop.events else None)
                self._handle_events()
            serve.notify("STOPPING=1")
        finally:
            self._commands.kill()
            self._devices.close()
            self._spawner.leave()
            if self._pins is not None:
                self._pins.close()
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

    def _describe(self, found: Devices) -> None:
        """Tell sessions and the tracker the board's devices."""
        self._options["devices"] = tuple(found)
        if self._tracker is not None:
            self._tracker.introduce(devices=found.names)

    def _read_secrets(self) -> None:
        """Read the standing key, make the front's; a credential is read later, by each connection to a tracker.

        No earlier: the first zygote is a copy of this process, and each session has its memory. Raises ConfigError.
        """
        config, records = self._config, self._state.records
        if config.lab or config.standing_key:
            processes.set_dumpable(False)
        if config.standing_key:
            from rpcsys.link import standing_key  # with OpenSSL

            found = standing_key.read_or_make(config.standing_key, config.key)
            log.info("clients need the standing key in %s: sessions are encrypted", config.standing_key)
            text, seed = found.match_key.text, found.own.seed.hex()
            records.policy = dataclasses.replace(records.policy, standing=text, standing_seed=seed)
        if config.lab and config.deploy and self._tracker is not None:
            front, seed = session_keys.front(config.key)
            self._deployed_key = front.name if config.proxies else ""
            records.policy = dataclasses.replace(
                records.policy, front=front.name, front_seed=seed, deployed_key=self._deployed_key
            )
            self._tracker.introduce(pin=front.pin)

    def _settings(self) -> dict[str, Any]:
        """The settings of a zygote and its children."""
        config = self._config
        needed, closed = session_paths.needed(config), []
        secrets = session_paths.secrets(config, [*needed, self._folder])
        if self._users:
            needed = [path for path in needed if not mount_namespace.is_closed(path)]
            closed = mount_namespace.closed_above([*needed, self._folder])
        return {
            "supervisor": os.getpid(),
            "fork": config.fork,
            "preload": list(config.preload),
            "imports": list(config.imports),
            "folder": self._folder,
            "isolate": config.isolation,
            "read_only": config.read_only,
            "no_network": config.session_network == "none",
            "keep": mount_namespace.hidden(needed, closed),
            "closed": closed,
            "secret": secrets,
            "user": self._users and self._users.of_slot(0),
            "needed": [path for path in (self._folder, *config.load_library, config.cache, config.deploy) if path],
            "memory": config.session_memory,
            "shared": config.cache,
            "deploy": config.deploy,
            "confined": config.isolation,
            "tvm": config.tvm,
            "tvm_apart": config.tvm_apart,
            "tvm_library": config.tvm_library,
            "secure": bool(config.lab or config.standing_key),
            "able": (config.allow_pickle, bool(config.cache), bool(config.deploy), config.allow_exec),
            "cgroups": self._cgroups,
        }

    def _pages(self, listener: socket.socket) -> Web:
        refusal = None
        if self._config.lab:
            from rpcsys.link.web_guard import MetricsGuard

            refusal = MetricsGuard("server", self._config.http_open).refusal
        return Web(self._loop, listener, {"/healthz": _alive, "/metrics": self._metrics.page}, refusal)

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

    def _handle_events(self) -> None:
        """Give all queued events to the state, carry out its actions, and set the timer to its deadline.

        Reports to the tracker go with the next command, or at the end. If the link is lost, the next turn handles that.
        """
        while self._loop.events and self._why is None:
            self._carry_out(self._state.handle(self._loop.events.popleft()))
        if self._tracker is not None:
            self._tracker.flush()
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
            do.FindDevices: self._devices.start,
            do.RunCommand: self._commands.run,
            do.Refuse: clients.refuse,
            do.Drop: clients.drop,
            do.TurnAway: clients.turn_away,
            do.Attach: functools.partial(clients.attach, spawner.send_json),
            do.StopListening: clients.stop_listening,
            do.Park: proxies.park,
            do.Unpark: proxies.unpark,
            do.Announce: self._announce,
            do.Log: self._log,
            do.Exit: self._exit,
        }
        if config.lab or config.standing_key:
            from rpcsys.server.supervisor.fronts_io import FrontsIo

            table.update(FrontsIo(self._loop, clients, spawner, self._folder).actions())
        if self._pins is not None:
            table[do.PinGovernors] = self._pins.pin
        if config.canary is not None:
            from rpcsys.server.supervisor.canary_io import CanaryIo

            table[do.RunCanary] = CanaryIo(config, spawner, self._users).run
        if config.deploy:
            from rpcsys.server.supervisor.deployments_io import DeploymentsIo

            deployed = DeploymentsIo(self._loop, config, clients, spawner, self._report_deployed, self._users)
            table.update(deployed.actions())
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
        pinned: str,
        seed: str,
        models_only: bool,
    ) -> None:
        cpus = frozenset(self._config.cpus[slot] if self._config.cpus else ())
        try:
            if note:
                self._cleaner.note()
            # The child that explains a session's end works outside its directory, which may be full or removed.
            user = self._users.of_slot(slot) if self._users else None
            folder = self._folder if kind == TVM_END else self._cleaner.make_folder(session, user)
            if cpus:
                limits.keep_on(self._spawner.roots(child), cpus)
                self._keep_grouped_on(child, cpus)
            reply = self._clients.answer(conn, kind == RPCSYS)
            key, options = self._config.key, {**self._options, "models_only": models_only}
            job = Job(kind, reply, folder, key, peer, limit_s, lease, options, words, longest_s, pinned, seed, user)
            self._spawner.give(child, job, self._clients.descriptor(conn))
            self._memory.add(child, cpus)
        except OSError as error:
            self._loop.post(ev.StartFailed, session, error.strerror or str(error))

    def _keep_grouped_on(self, child: int, cpus: frozenset[int]) -> None:
        try:
            cgroups.keep_on(self._cgroups, child, cpus)
        except OSError as error:
            log.warning("a session's cpuset was not set (%s): polling holds its CPUs", error.strerror)

    def _finish(
        self, session: int, conn: int, error: tuple[str, ...], sweep: str, unanswered: bool, pinned: str
    ) -> None:
        if error:
            kind, text = error
            self._clients.send_error(conn, kind, text, unanswered, pinned)
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


def _session_options(config: ServerConfig) -> dict[str, Any]:
    return {
        "tvm": config.tvm,
        "load_library": list(config.load_library),
        "imports": list(config.imports),
        "allow_pickle": config.allow_pickle,
        "allow_exec": config.allow_exec,
        "log": True,
        "cache": config.cache_options,
        "deploy": bool(config.deploy),
    }


def _alive() -> tuple[str, bytes]:
    return "text/plain; charset=utf-8", b"ok\n"


def _policy(config: ServerConfig, deployed_key: str, search: bool) -> Policy:
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
        pinned=bool(config.lab or config.standing_key),
        in_lab=bool(config.lab),
        pin_governor=config.pin_governor,
        search=search,
        deployed_key=deployed_key,
        canary=config.canary is not None,
        canary_every_s=config.canary_every_s,
        proxies=tuple("{}:{}".format(*proxy) for proxy in config.proxies),
    )


def _make_users(config: ServerConfig) -> session_user.SessionUsers | None:
    """The users of sessions, None for the server's own; all need what sessions share. Raises ConfigError."""
    name = config.session_user
    if name == session_user.AUTO and os.geteuid():
        log.warning("--session-user auto needs root: sessions run as this server's user")
        return None
    if name == session_user.NONE:
        return None
    users = session_user.SessionUsers(name, config.session_groups, cache=bool(config.cache))
    os.umask(0o022)  # what the server makes for sessions is open to their users, inside of closed folders
    if config.cache:
        Cache(config.cache, config.cache_bytes).share(session_user.CACHE)
    return users


def _make_folder(mode: int) -> str:
    parent = os.environ.get("TMPDIR") or "/tmp"
    try:
        folder = work_folders.make_folder(parent)
        os.chmod(folder, mode)
        return folder
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
