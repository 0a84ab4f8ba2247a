"""The supervisor's side of model hosts and deployers: carries out actions on them, posts their messages as events."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from rpcsys.server.config import ServerConfig
from rpcsys.server.models.store import Store, Version, is_name
from rpcsys.server.sandbox.messages import DEPLOYER, HOST, Job
from rpcsys.server.sandbox.session_user import SessionUsers
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.children import Spawner
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.loop import Loop


class DeploymentsIo:
    """The deployed modules in the folder ``--deploy``. ``report(modules, workers)`` reports them to the tracker.

    ``users``: of sessions, and of hosts; None for the server's.
    """

    def __init__(
        self,
        loop: Loop,
        config: ServerConfig,
        clients: Clients,
        spawner: Spawner,
        report: Callable[[tuple[Any, ...], int], None],
        users: SessionUsers | None = None,
    ) -> None:
        self._loop = loop
        self._config = config
        self._workers = config.deploy_workers or len(os.sched_getaffinity(0))
        self._store = Store(config.deploy or "")
        self._lock = self._store.open()
        self._clients = clients
        self._spawner = spawner
        self._report = report
        self._users = users
        spawner.on_service = self.hear
        self._reread()

    def actions(self) -> dict[type, Callable[..., object]]:
        """The function that carries out each kind of action, with the action's fields as arguments."""
        return {
            do.Reread: self._reread,
            do.BeHost: self._be_host,
            do.BeDeployer: self._be_deployer,
            do.Hand: self._hand,
            do.CloseHere: self._clients.release,
            do.SendToChild: self._send,
            do.ReportDeployed: lambda modules: self._report(modules, self._workers),
        }

    def _reread(self) -> None:
        self._loop.post(ev.Catalogue, tuple(self._store.current()))

    def hear(self, child: int, message: dict[str, Any], descriptor: int | None) -> int | None:
        """Handle one checked message of a host or a deployer. Returns ``descriptor`` if it is not kept.

        Raises `ProtocolError` or KeyError for a message that they never send: a module has written to the socket.
        """
        post = self._loop.post
        if "moved" in message and descriptor is not None:
            peer, greeted = message["moved"], message["greeted"]
            post(ev.Moved, child, self._clients.take_back(descriptor), peer, greeted)
            return None
        if "took" in message:
            post(ev.HandedOver, child, message["took"])
        elif "load" in message:
            post(ev.Load, child, *message["load"])
        elif "unloadable" in message:
            post(ev.Unloadable, child, message["unloadable"])
        elif "try" in message:
            if is_name((version := Version(*message["try"])).name):
                post(ev.Try, child, version)
        elif kind := next((kind for word, kind in _REPORTS.items() if word in message), None):
            post(kind, child)
        return descriptor

    def _be_host(self, child: int, version: Version) -> None:
        path = self._store.path(version)
        deployed = {
            **version._asdict(),
            "path": path,
            "workers": self._workers,
            "queue": self._config.deploy_queue,
            "allow_pickle": self._config.allow_pickle,
        }
        folder = os.path.dirname(path)
        try:
            user = self._users.of_model(folder) if self._users else None
        except OSError:  # it is removed, or the disk is read-only
            self._spawner.kill(child)
            return
        options = {"deployed": deployed, "load_library": list(self._config.load_library)}
        job = Job(HOST, b"", folder, self._config.key, "", options=options, user=user)
        self._give(child, job, None)

    def _be_deployer(self, child: int, conn: int, peer: str, modules: tuple[str, ...]) -> None:
        folder = os.path.join(self._store.root, "incoming")
        options: dict[str, Any] = {"deploy": self._store.root, "allow_pickle": self._config.allow_pickle}
        options["modules"] = modules
        options["load_library"] = list(self._config.load_library)
        options["cache"] = self._config.cache_options
        job = Job(DEPLOYER, self._clients.answer(conn, True), folder, self._config.key, peer, options=options)
        self._give(child, job, self._clients.descriptor(conn))

    def _give(self, child: int, job: Job, descriptor: int | None) -> None:
        try:
            self._spawner.give(child, job, descriptor)
        except OSError:
            self._spawner.kill(child)  # its death follows

    def _hand(self, child: int, conn: int, peer: str, fresh: bool, greeted: bool) -> None:
        """Hand a client's connection to a host; it stays open here until the host has said that it has it."""
        reply = self._clients.answer(conn, True).decode("latin-1") if fresh else None
        fields = {"conn": conn, "client": peer, "reply": reply, "greeted": greeted}
        if not self._spawner.send_json(child, fields, self._clients.descriptor(conn)):
            self._loop.post(ev.NotTaken, child, conn)

    def _send(self, child: int, word: str, value: Any) -> None:
        """Send a message to a host or a deployer; kill one that does not take it."""
        if not self._spawner.send_json(child, {word: value}):
            self._spawner.kill(child)


#: The event for each message without a value.
_REPORTS: dict[str, Callable[[float, int], ev.ChildReport]] = {
    "loaded": ev.Loaded,
    "stuck": ev.Stuck,
    "leaving": ev.Leaving,
    "changed": ev.Changed,
    "states": ev.Asked,
}
