"""The supervisor's end of its model hosts and deployers: what is decided of them, carried out; what they say, as events."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from rpcsys.server.config import ServerConfig
from rpcsys.server.models.store import Store, Version, is_name
from rpcsys.server.sandbox.messages import DEPLOYER, HOST, Job
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.children import Spawner
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.loop import Loop


class DeploymentsIo:
    """Deployed modules of the folder ``--deploy``. ``report``: takes the modules, and how many workers each has."""

    def __init__(
        self,
        loop: Loop,
        config: ServerConfig,
        clients: Clients,
        spawner: Spawner,
        report: Callable[[tuple[Any, ...], int], None],
    ) -> None:
        self._loop = loop
        self._config = config
        self._workers = config.deploy_workers or len(os.sched_getaffinity(0))
        self._store = Store(config.deploy or "")
        self._lock = self._store.open()
        self._clients = clients
        self._spawner = spawner
        self._report = report
        spawner.on_service = self.hear
        self._reread()

    def actions(self) -> dict[type, Callable[[Any], object]]:
        """What carries out which action."""
        return {
            do.Reread: self._reread,
            do.BeHost: self._be_host,
            do.BeDeployer: self._be_deployer,
            do.Hand: self._hand,
            do.SendToChild: self._send,
            do.ReportDeployed: lambda action: self._report(action.modules, self._workers),
        }

    def _reread(self, action: do.Reread | None = None) -> None:
        self._loop.post(ev.Catalogue, tuple(self._store.current()))

    def hear(self, child: int, said: dict[str, Any], descriptor: int | None) -> int | None:
        """One checked message of a host or a deployer, with a descriptor, which is returned if it is nothing that is wanted.

        Raises `ProtocolError` or KeyError for what none of them says: a module has written to it.
        """
        post = self._loop.post
        if "moved" in said and descriptor is not None:
            peer, greeted = said["moved"], said["greeted"]
            post(ev.Moved, child, self._clients.take_back(descriptor), peer, greeted)
            return None
        if "load" in said:
            post(ev.Load, child, *said["load"])
        elif "unloadable" in said:
            post(ev.Unloadable, child, said["unloadable"])
        elif "try" in said:
            version = Version(*said["try"])
            if is_name(version.name):
                post(ev.Try, child, version)
        else:
            for word, kind in _REPORTS.items():
                if word in said:
                    post(kind, child)
                    break
        return descriptor

    def _be_host(self, action: do.BeHost) -> None:
        path = self._store.path(action.version)
        deployed = {
            **action.version._asdict(),
            "path": path,
            "workers": self._workers,
            "queue": self._config.deploy_queue,
            "allow_pickle": self._config.allow_pickle,
        }
        job = Job(HOST, b"", os.path.dirname(path), self._config.key, "", options={"deployed": deployed})
        self._give(action.child, job, None)

    def _be_deployer(self, action: do.BeDeployer) -> None:
        folder = os.path.join(self._store.root, "incoming")
        options = {"deploy": self._store.root, "allow_pickle": self._config.allow_pickle}
        reply = self._clients.answer(action.conn, True)
        job = Job(DEPLOYER, reply, folder, self._config.key, action.peer, options=options)
        self._give(action.child, job, self._clients.descriptor(action.conn))

    def _give(self, child: int, job: Job, descriptor: int | None) -> None:
        try:
            self._spawner.give(child, job, descriptor)
        except OSError:
            self._spawner.kill(child)  # its death follows

    def _hand(self, action: do.Hand) -> None:
        """Give a host a client, which is its alone from then on."""
        child, conn, peer, greeted = action.child, action.conn, action.peer, action.greeted
        reply = self._clients.answer(conn, True).decode("latin-1") if action.fresh else None
        fields = {"client": peer, "reply": reply, "greeted": greeted}
        if self._spawner.send_json(child, fields, self._clients.descriptor(conn)):
            self._clients.release(conn)
        else:
            self._loop.post(ev.NotTaken, child, conn, peer, action.fresh, greeted)

    def _send(self, action: do.SendToChild) -> None:
        """Send a host or a deployer a word; one that takes none is of no use."""
        if not self._spawner.send_json(action.child, {action.word: action.value}):
            self._spawner.kill(action.child)


#: What is said without more.
_REPORTS: dict[str, Callable[[float, int], ev.ChildReport]] = {
    "loaded": ev.Loaded,
    "stuck": ev.Stuck,
    "leaving": ev.Leaving,
    "changed": ev.Changed,
    "states": ev.Asked,
}
