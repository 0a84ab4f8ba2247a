"""The supervisor's end of its model hosts: what `hosting` decides, carried out; what they say, told as events. Nothing blocks."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

from rpcsys.server.models.store import Store, Version, is_name
from rpcsys.server.sandbox.messages import DEPLOYER, HOST, Job
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.children import Spawner
from rpcsys.server.supervisor.clients import Clients


class DeploymentsIo:
    """Deployed modules of the folder ``root``. ``key``: what clients are told; ``limits``: workers and places to wait, of each host; ``announce``: tells a tracker."""

    def __init__(
        self,
        root: str,
        key: str,
        limits: Tuple[int, int],
        allow_pickle: bool,
        clients: Clients,
        spawner: Spawner,
        announce: Callable[[Tuple[Any, ...], int], None],
        feed: Callable[[ev.Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._store = Store(root)
        self._lock = self._store.open()
        self._key = key
        self._workers, self._queue = limits
        self._allow_pickle = allow_pickle
        self._clients = clients
        self._spawner = spawner
        self._announce = announce
        self._feed = feed
        self._clock = clock
        spawner.on_service = self.hear
        self.reread()

    def reread(self, action: Optional[do.Reread] = None) -> None:
        """Tell what is to be served."""
        self._feed(ev.Catalogue(self._clock(), tuple(self._store.current())))

    # -------------------------------------------------------------- what they say

    def hear(self, child: int, said: Dict[str, Any], descriptor: Optional[int]) -> Optional[int]:
        """One checked message of a host or a deployer, with a descriptor, which is returned if it is nothing that is wanted.

        Raises `ProtocolError` or KeyError for what none of them says: a module has written to it.
        """
        now = self._clock()
        if "moved" in said and descriptor is not None:
            peer, greeted = said["moved"], said["greeted"]
            conn = self._clients.take_back(descriptor)
            self._feed(ev.Moved(now, child, conn, peer, greeted))
            return None
        event = _event(now, child, said)
        if event is not None:
            self._feed(event)
        return descriptor

    # -------------------------------------------------------------- what they are told

    def be_host(self, action: do.BeHost) -> None:
        """Give a child its version."""
        version = action.version
        about = {
            **version._asdict(),
            "path": self._store.path(version),
            "workers": self._workers,
            "queue": self._queue,
            "allow_pickle": self._allow_pickle,
        }
        self._give(action.child, HOST, os.path.dirname(about["path"]), {"deployed": about})

    def _give(
        self, child: int, kind: str, workdir: str, options: Dict[str, Any], conn: Optional[int] = None, peer: str = ""
    ) -> None:
        reply = b"" if conn is None else self._clients.answer(conn, True)
        job = Job(kind, reply, workdir, self._key, peer, options=options)
        try:
            self._spawner.give(child, job, None if conn is None else self._clients.descriptor(conn))
        except OSError:
            self._spawner.kill(child)  # its death follows

    def be_deployer(self, action: do.BeDeployer) -> None:
        """Give a child a client that deploys."""
        folder = os.path.join(self._store.root, "incoming")
        options = {"deploy": self._store.root, "allow_pickle": self._allow_pickle}
        self._give(action.child, DEPLOYER, folder, options, action.conn, action.peer)

    def hand(self, action: do.Hand) -> None:
        """Give a host a client, which is its alone from then on."""
        reply = self._clients.answer(action.conn, True).decode("latin-1") if action.fresh else None
        told: Dict[str, Any] = {"client": action.peer, "reply": reply, "greeted": action.greeted}
        if self._spawner.tell(action.child, told, self._clients.descriptor(action.conn)):
            self._clients.release(action.conn)
        else:
            self._feed(ev.NotTaken(self._clock(), *dataclasses.astuple(action)))

    def tell(self, action: do.TellChild) -> None:
        """Tell a host or a deployer something; one that cannot be told is of no use."""
        if not self._spawner.tell(action.child, {action.word: action.value}):
            self._spawner.kill(action.child)

    def announce(self, action: do.TellDeployed) -> None:
        """Tell the tracker."""
        self._announce(action.modules, self._workers)

    def turn_away(self, action: do.TurnAway) -> None:
        """Tell a client why it is not served."""
        self._clients.tell(action.conn, action.kind, action.text, unanswered=action.fresh)
        self._clients.drop(action.conn)


ACTIONS: List[Tuple[type, Callable[[DeploymentsIo, Any], None]]] = [
    (do.Reread, DeploymentsIo.reread),
    (do.BeHost, DeploymentsIo.be_host),
    (do.BeDeployer, DeploymentsIo.be_deployer),
    (do.Hand, DeploymentsIo.hand),
    (do.TellChild, DeploymentsIo.tell),
    (do.TurnAway, DeploymentsIo.turn_away),
    (do.TellDeployed, DeploymentsIo.announce),
]


def _event(now: float, child: int, said: Dict[str, Any]) -> Optional[ev.Event]:
    if "load" in said:
        return ev.Load(now, child, *said["load"])
    if "loaded" in said:
        return ev.Loaded(now, child)
    if "unloadable" in said:
        return ev.Unloadable(now, child, said["unloadable"])
    if "stuck" in said:
        return ev.Stuck(now, child)
    if "leaving" in said:
        return ev.Leaving(now, child)
    if "try" in said:
        version = Version(*said["try"])
        return ev.Try(now, child, version) if is_name(version.name) else None
    if "changed" in said:
        return ev.Changed(now, child)
    if "states" in said:
        return ev.Asked(now, child)
    return None
