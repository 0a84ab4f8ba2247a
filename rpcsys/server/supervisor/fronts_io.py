"""The supervisor's side of the front: gives it connections, and takes back their plain sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rpcsys.errors import ProtocolError
from rpcsys.server.sandbox.messages import FRONT, Job
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.children import Spawner
from rpcsys.server.supervisor.clients import Clients, last_words
from rpcsys.server.supervisor.loop import Loop


class FrontsIo:
    """Carries out actions on the front, and posts its messages. ``folder``: where it works."""

    def __init__(self, loop: Loop, clients: Clients, spawner: Spawner, folder: str) -> None:
        self._loop = loop
        self._clients = clients
        self._spawner = spawner
        self._folder = folder
        spawner.on_front = self._hear

    def actions(self) -> dict[type, Callable[..., object]]:
        """The function that carries out each kind of action, with the action's fields as arguments."""
        return {do.BeFront: self._be_front, do.Secure: self._secure, do.EndSecured: self._end}

    def _be_front(self, child: int) -> None:
        try:
            self._spawner.give(child, Job(FRONT, b"", self._folder, "", ""), None)
        except OSError:
            self._spawner.kill(child)  # its death follows

    def _secure(self, child: int, conn: int, matchkey: str, seed: str, session: bool) -> None:
        answer = self._clients.answer(conn, session).decode("latin-1")
        fields = {"secure": conn, "matchkey": matchkey, "seed": seed, "answer": answer}
        if not self._spawner.send_json(child, fields, self._clients.lend(conn)):
            self._spawner.kill(child)

    def _end(self, child: int, conns: tuple[int, ...], matchkey: str, why: str) -> None:
        said = last_words(matchkey, "SessionLost", why).decode("latin-1")
        if not self._spawner.send_json(child, {"end": conns, "words": said}):
            self._spawner.kill(child)  # and with it the connections

    def _hear(self, child: int, message: dict[str, Any], descriptor: int | None) -> int | None:
        """Handle one checked message. Returns ``descriptor`` if it is not kept. Raises `ProtocolError`."""
        if "secured" in message:
            if descriptor is None:
                raise ProtocolError("a connection without a descriptor")
            conn, names = message["secured"], ("session", "serve", "timeout_s", "said")
            if self._clients.secured(conn, descriptor):
                self._loop.post(ev.Secured, conn, **{name: message[name] for name in names if name in message})
                return None
        elif "took" in message:
            self._loop.post(ev.FrontTook)
        elif "closed" in message:
            self._loop.post(ev.FrontClosed, message["closed"])
        elif "refused" in message:
            self._loop.post(ev.Broken, message["refused"], message.get("why", ""))
        return descriptor
