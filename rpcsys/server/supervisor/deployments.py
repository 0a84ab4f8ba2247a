"""The supervisor's decisions about deployed modules: their clients, and the clients that deploy.

A deployer process receives a file, makes a version of it and has a model host try it. Then it switches the version on
the disk, and the supervisor reads the disk again (``Catalogue``). After any crash, the disk's state holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.model_hosts import DEAF, LEAVING, READY, SERVING, SPAWNED, ModelHosts
from rpcsys.server.supervisor.process_table import ProcessTable, ZygoteState
from rpcsys.server.supervisor.records import ServerRecords, earliest

WAIT_S = 30.0  # longest wait of a client for a host that starts
TIDY_S = 2.0  # time for a deployer to remove the received file after its client hung up
MAX_WAITING = 256  # clients that wait for hosts
MAX_DEPLOYERS = 8  # clients that deploy: each has a process
MAX_CLIENTS = 1000  # clients of one host: each costs 64 kB and a descriptor. Most systems allow a process 1,024
HEARD_S = 5.0  # longest wait of a deployer for old hosts to stop: a host in native code reads no message
SHOWN = 20  # names in one error


@dataclass
class DeployerProcess:
    """A client that deploys, and its process."""

    conn: int
    peer: str
    modules: tuple[str, ...]  # patterns of those that it may replace
    changed: bool = False  # it has changed the disk, which is not read yet
    heard_by: float | None = None  # the change is read; by this time old hosts must have begun to leave
    until: float | None = None  # its client hung up; at this time the process is killed


@dataclass
class ModelClient:
    """A client that waits for a host."""

    conn: int
    peer: str
    name: str
    until: float
    fresh: bool = True
    greeted: bool = False

    def turn_away(self, kind: str, text: str) -> do.Action:
        return do.TurnAway(self.conn, kind, text, self.fresh)


class Deployments:
    """Hosts, their waiting clients and deployers. Methods record an event; :meth:`settle` follows each of them."""

    def __init__(self, records: ServerRecords, processes: ProcessTable) -> None:
        self.records = records
        self.processes = processes
        self.hosts = ModelHosts(records, processes)
        self.deployers: dict[int, DeployerProcess] = {}
        self.waiting: list[ModelClient] = []
        #: Clients by connection, and the host that each was handed to, until that host says that it has it.
        self.handed: dict[int, tuple[int, ModelClient]] = {}

    def handlers(self) -> dict[type, Callable[[Any], list[do.Action]]]:
        hosts = self.hosts
        return {
            ev.Catalogue: self._read,
            ev.Loaded: hosts.loaded,
            ev.Unloadable: hosts.unloadable,
            ev.Load: hosts.load,
            ev.Stuck: hosts.stuck,
            ev.Leaving: hosts.leaving,
            ev.Moved: self._moved,
            ev.HandedOver: self._handed_over,
            ev.NotTaken: self._not_taken,
            ev.Try: self._try,
            ev.Changed: self._changed,
            ev.Asked: self._asked,
        }

    # Clients

    def visit(self, conn: int, peer: str, name: str, modules: tuple[str, ...] = ("*",)) -> list[do.Action]:
        """Admit a client of the module ``name`` or, with an empty name, one that may deploy ``modules``, patterns."""
        busy = ""
        if len(self.waiting) >= MAX_WAITING:
            busy = f"{MAX_WAITING} clients wait for modules here"
        elif name:
            self.waiting.append(ModelClient(conn, peer, name, self.records.now + WAIT_S))
            return []
        elif len(self.deployers) >= MAX_DEPLOYERS:
            busy = f"{MAX_DEPLOYERS} clients deploy here already"
        elif self.processes.zygote is not ZygoteState.UP:
            busy = "the server is starting"
        if busy:
            return [do.TurnAway(conn, "Busy", f"{busy}; try again in a moment", True)]
        spawned = self.processes.spawn(ChildKind.DEPLOYER)
        self.deployers[spawned.child] = DeployerProcess(conn, peer, modules)
        return [spawned]

    def hung_up(self, conn: int) -> list[do.Action] | None:
        """Handle a client's hang-up; None if its connection is unknown here."""
        if self.handed.pop(conn, None) is not None:
            return [do.Drop(conn)]
        for client in self.waiting:
            if client.conn == conn:
                self.waiting.remove(client)
                return [do.Drop(conn)]
        for deployer in self.deployers.values():
            if deployer.conn == conn:
                deployer.until = self.records.now + TIDY_S
                return []
        return None

    def _moved(self, event: ev.Moved) -> list[do.Action]:
        """A host returns a connection: it waits for the host's successor."""
        host = self.hosts.by_child.get(event.child)
        if host is None or not host.handed:
            return [do.Drop(event.conn)]
        host.handed -= 1
        client = ModelClient(event.conn, event.peer, host.version.name, 0.0, fresh=False, greeted=event.greeted)
        return self._wait_again(client)

    def _handed_over(self, event: ev.HandedOver) -> list[do.Action]:
        return [] if self._handed_to(event) is None else [do.CloseHere(event.conn)]

    def _not_taken(self, event: ev.NotTaken) -> list[do.Action]:
        """A connection waits for another host. Kill the one that has not taken it, unless it is dead."""
        client = self._handed_to(event)
        actions = [] if client is None else self._wait_again(client)
        host = self.hosts.by_child.get(event.child)
        if host is None or host.state is not SERVING:
            return actions
        host.move(DEAF)
        return [*actions, do.Kill(event.child)]

    def _handed_to(self, event: ev.HandedOver | ev.NotTaken) -> ModelClient | None:
        """The client that was handed to a host, which is so no longer."""
        child, client = self.handed.get(event.conn, (0, None))
        if child != event.child:
            return None
        del self.handed[event.conn]
        return client

    def _wait_again(self, client: ModelClient) -> list[do.Action]:
        if self.records.stopping:
            return [do.Drop(client.conn)]
        client.until = self.records.now + WAIT_S
        self.waiting.append(client)
        return []

    def _take_from(self, children: Collection[int]) -> list[do.Action]:
        """Have clients wait again whose hosts died before they said that they have them."""
        found = [client for child, client in self.handed.values() if child in children]
        for client in found:
            del self.handed[client.conn]
        return [action for client in found for action in self._wait_again(client)]

    # Processes

    def zygote_down(self) -> list[do.Action]:
        deployers, self.deployers = self.deployers, {}
        actions = self._take_from(self.hosts.by_child)
        self.hosts.by_child.clear()
        return [*actions, *(do.Drop(deployer.conn) for deployer in deployers.values()), do.Reread()]

    def ready(self, child: int) -> list[do.Action]:
        host, deployer = self.hosts.by_child.get(child), self.deployers.get(child)
        if host is not None and host.state is SPAWNED:
            host.move(READY)
            return [do.BeHost(child, host.version)]
        return [] if deployer is None else [do.BeDeployer(child, deployer.conn, deployer.peer, deployer.modules)]

    def dead(self, child: int, status: int) -> list[do.Action]:
        deployer = self.deployers.pop(child, None)
        if deployer is not None:
            return [do.Drop(deployer.conn), do.Reread()]
        return self._take_from((child,)) + self.hosts.dead(child, status)

    # Deploying

    def _try(self, event: ev.Try) -> list[do.Action]:
        """Start a host to test whether a version can be loaded."""
        return [self.hosts.spawn(event.version, event.child)] if event.child in self.deployers else []

    def _changed(self, event: ev.Changed) -> list[do.Action]:
        deployer = self.deployers.get(event.child)
        if deployer is None:
            return []
        deployer.changed = True
        return [do.Reread()]

    def _asked(self, event: ev.Asked) -> list[do.Action]:
        """Send each module's state, and its host's running calls, waiting calls and clients."""
        return [do.SendToChild(event.child, "states", self.hosts.states())] if event.child in self.deployers else []

    def _read(self, event: ev.Catalogue) -> list[do.Action]:
        actions = self.hosts.read(event.versions, self.deployers)
        for deployer in self.deployers.values():
            if deployer.changed:
                deployer.changed = False
                deployer.heard_by = event.now + HEARD_S
        return actions

    # What follows

    def stop(self) -> list[do.Action]:
        """Stop: drop waiting clients and kill deployers. Hosts finish their calls and take no more."""
        waiting, self.waiting = self.waiting, []
        return [*(do.Drop(client.conn) for client in waiting), *map(do.Kill, self.deployers)]

    def end(self) -> list[do.Action]:
        return [do.Kill(child) for child in self.hosts.by_child]

    @property
    def busy(self) -> bool:
        return bool(self.hosts.by_child or self.deployers)

    @property
    def in_use(self) -> bool:
        """Whether somebody deploys, waits for a host or calls a module."""
        calls = any(running or waiting for running, waiting, _ in (host.load for host in self.hosts.by_child.values()))
        return bool(calls or self.waiting or self.handed or self.deployers)

    def settle(self) -> list[do.Action]:
        """Start and end hosts to match the catalogue, and hand waiting clients to hosts."""
        now, actions = self.records.now, self.hosts.leave()
        for child, deployer in self.deployers.items():
            if deployer.until is not None and now >= deployer.until:
                deployer.until = None
                actions.append(do.Kill(child))
        actions += self._report_seen()
        if self.records.stopping:
            return actions
        actions += self.hosts.start_missing()
        waiting, self.waiting = self.waiting, []
        return actions + [action for client in waiting for action in self._place(client)]

    def _report_seen(self) -> list[do.Action]:
        """Send ``seen`` to deployers once no call can reach an earlier version."""
        actions: list[do.Action] = []
        unheard = any(host.state is LEAVING and host.calls for host in self.hosts.by_child.values())
        for child, deployer in self.deployers.items():
            if deployer.heard_by is not None and (not unheard or self.records.now >= deployer.heard_by):
                deployer.heard_by = None
                actions.append(do.SendToChild(child, "seen", True))
        return actions

    def deadline(self) -> float | None:
        if self.records.stopping:
            return None
        deployers = [time for each in self.deployers.values() for time in (each.until, each.heard_by)]
        return earliest([self.hosts.next_start(), *deployers, *(client.until for client in self.waiting)])

    def _place(self, client: ModelClient) -> list[do.Action]:
        name = client.name
        if name not in self.hosts.catalogue:
            return [client.turn_away("ServerRefused", self._unknown(name))]
        child = self.hosts.serving(name)
        if child is not None:
            return [self._hand(child, client)]
        if name in self.hosts.faults:
            return [client.turn_away("Busy", f"the module {name!r} cannot be served now: {self.hosts.faults[name]}")]
        if self.records.now >= client.until:
            return [client.turn_away("Busy", f"the module {name!r} is being started; try again in a moment")]
        self.waiting.append(client)
        return []

    def _hand(self, child: int, client: ModelClient) -> do.Action:
        host = self.hosts.by_child[child]
        if host.load[2] + host.given >= MAX_CLIENTS:
            all_taken = f"has {MAX_CLIENTS} clients here, which is its limit; try again later"
            return client.turn_away("Busy", f"the module {client.name!r} {all_taken}")
        host.given += 1
        host.handed += 1
        self.handed[client.conn] = child, client
        return do.Hand(child, client.conn, client.peer, client.fresh, client.greeted)

    def _unknown(self, name: str) -> str:
        names = sorted(self.hosts.catalogue)
        if not names:
            where = "NAME --tracker HOST:PORT" if self.records.policy.in_lab else "HOST:PORT"
            return f"nothing is deployed on this server; type: rpcsys deploy FILE --to {where}"
        near = difflib.get_close_matches(name, names, 3, 0.5) or names[:SHOWN]
        more = ", …" if len(names) > len(near) else ""
        return f"no module {name[:100]!r} is deployed on this server; it has {', '.join(near)}{more}"
