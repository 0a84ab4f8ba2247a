"""The right to call deployed modules in a lab, and to deploy: who has it at which server, until when, by which secret.

The tracker makes the secret and tells the server before the client. A member that asks again soon gets the same one.
When the right ends, by new rules or with the membership, the server ends all that came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rpcsys.tracker import permissions
from rpcsys.tracker.entities import GivenSecret, Peer, Use
from rpcsys.tracker.events import Action, Allowed
from rpcsys.tracker.records import Records
from rpcsys.tracker.views import hints, rows
from rpcsys.wire import control
from rpcsys.wire.pinned_keys import DEPLOY, SERVE, PinnedMatchKey

ADMITTED_S = 600.0  # that a secret is good for; it is given again until half of this is over
MOST = 4096  # uses that are known of one server: beyond, the one that was longest not asked for ends
MAX_PLACES = 32  # servers of a module that a client gets secrets for; it tries eight


@dataclass(eq=False)
class Admissions:
    """Gives secrets to members, and takes them back."""

    records: Records

    # Questions of clients

    def resolve(self, peer: Peer, message: control.Resolve) -> list[Action]:
        """Send where a deployed module is served; to a client that is about to connect, with what it is to say."""
        records = self.records
        modules = rows.modules(records, peer, message.name)
        if records.lab is not None:
            modules = [row for row in modules if permissions.may_call(records, peer, row["name"])]
        if message.name and not modules:
            known = permissions.sees(records, peer)
            why = hints.unknown_module(records, message.name) if known else f"no server has {message.name!r}"
            return [peer.refuse(message.id, why, "UnknownKey")]
        actions: list[Action] = []
        if message.admit and message.name and records.lab is not None:
            del modules[MAX_PLACES:]
            for row in modules:
                told, fields = self._fields(self._server(row["server"]), peer, SERVE, (message.name,))
                actions += told
                row.update(fields)
        return [*actions, peer.done(message.id, modules=modules)]

    def to_deploy(self, peer: Peer, message: control.AskAdmission) -> list[Action]:
        """Send where and how a client deploys on a server."""
        records, name = self.records, message.server
        if name not in records.server_names or self._server(name).server is None:
            return [peer.refuse(message.id, hints.unknown_server(records, name), "UnknownKey")]
        server = self._server(name)
        place = server.for_modules(peer)
        told: list[Action] = []
        if records.lab is not None:
            told, fields = self._fields(server, peer, DEPLOY, permissions.deployable(records, peer))
            if not fields and peer.member is not None:
                why = f"server {name} takes no modules: start it with --deploy DIR, in the version of its tracker"
                return [peer.refuse(message.id, why)]
            place.update(fields)
        return [*told, peer.done(message.id, **place), Allowed(records.now, peer.who, peer.address, DEPLOY, name)]

    def _server(self, name: str) -> Peer:
        return self.records.peers[self.records.server_names[name]]

    def _fields(
        self, server: Peer, peer: Peer, what: str, modules: tuple[str, ...]
    ) -> tuple[list[Action], dict[str, Any]]:
        """The messages to the server, and the fields for the client; none for a server that encrypts nothing."""
        registered = server.server
        if registered is None or not registered.pin:
            # A member says nothing in the clear unless told: here, on a board that has not moved to the lab yet.
            return [], {"plain": True} if peer.member is not None and server.member is None else {}
        use = Use(what, modules, "" if peer.member is None else peer.member.name)
        given, actions = self._give(server, use)
        return actions, {"matchkey": PinnedMatchKey(registered.key, registered.pin, given.secret).text}

    def _give(self, server: Peer, use: Use) -> tuple[GivenSecret, list[Action]]:
        given, now = server.admitted.pop(use, None), self.records.now
        actions: list[Action] = []
        if given is None or given.until < now + ADMITTED_S / 2:
            given = GivenSecret(self.records.new_secret(), now + ADMITTED_S)
            actions.append(server.order(control.Admit(server.ask(), given.secret, *use, ADMITTED_S)))
        server.admitted[use] = given
        if len(server.admitted) > MOST:
            first = next(iter(server.admitted))
            actions.append(self._end(server, first, "too many members use the modules of its server"))
        return given, actions

    # Rights that end

    def registered(self, peer: Peer, uses: Sequence[control.ModuleUse]) -> list[Action]:
        """Note what a server says that it has let in by the word of an earlier link."""
        peer.admitted.clear()
        if self.records.lab is None:
            return []
        peer.admitted.update((Use(use.what, use.modules, use.member), GivenSecret("", 0.0)) for use in uses)
        return self._end_what_is_over(peer)

    def lab_changed(self) -> list[Action]:
        """End what the lab's new rules or members do not allow."""
        return [action for peer in self.records.peers.values() for action in self._end_what_is_over(peer)]

    def _end_what_is_over(self, peer: Peer) -> list[Action]:
        lab = self.records.lab
        why = "" if lab is None else f"the rules of lab {lab.name} do not allow it any more"
        over = [use for use in peer.admitted if not permissions.may_go_on(self.records, use)]
        return [self._end(peer, use, why) for use in over]

    def _end(self, server: Peer, use: Use, why: str) -> Action:
        del server.admitted[use]
        return server.order(control.Unadmit(server.ask(), *use, why))
