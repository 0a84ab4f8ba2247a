"""The sockets of ``rpcsys connect``: reads openings, and joins each connection with the lab's tracker or a server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

from rpcsys.daemon.acceptor import LOG_EVERY_S, Acceptor, leave_no_core, raise_descriptor_limit
from rpcsys.daemon.http import page_server
from rpcsys.daemon.loop import serving, until_signal
from rpcsys.errors import ConfigError, ConnectError, ProtocolError, Unauthorized, one_line
from rpcsys.forward import config as flags
from rpcsys.forward import lab_pages
from rpcsys.forward.config import Address, ForwardConfig
from rpcsys.forward.lab_pages import LabPages
from rpcsys.forward.owners import is_own
from rpcsys.forward.sessions import Sessions
from rpcsys.forward.state import ForwardState
from rpcsys.forward.tracker_peer import TrackerPeer
from rpcsys.link import credential
from rpcsys.link.address import address_text, parse_address, tracker_defaults, tracker_text
from rpcsys.link.credential import Credential
from rpcsys.link.link import Link
from rpcsys.link.targets import link_to, open_link, shared
from rpcsys.link.tcp import drain_and_close, tune
from rpcsys.link.terminator import TICK_S
from rpcsys.serve import announce, notify
from rpcsys.wire import first_bytes, handshake
from rpcsys.wire.handshake import Greeting
from rpcsys.wire.tracker import MAGIC_BYTES

log = logging.getLogger(__name__)
OPENING_S = 8.0  # until the first bytes of a connection are whole
MAX_PEERS = 1024  # tracker connections, and openings

_NO_CREDENTIAL = "ask its keeper for an invitation, then type: rpcsys login"


class ForwardService:
    """Forwards what arrives at ``own`` to the lab whose tracker is at ``tracker``. To be made in the event loop."""

    def __init__(self, own: Address, tracker: Address) -> None:
        self.port = own[1]
        self.state = ForwardState(*own)
        self.sessions = Sessions()
        self.pages = LabPages(self._open_link)
        self._page_server = page_server(self.pages, lab_pages.guard)
        self._tracker = shared(tracker)
        self._peers: dict[TrackerPeer, None] = {}
        self._reported = "", 0.0  # why the tracker was lost, and when that was logged
        self._openings: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def accept(self, sock: socket.socket, address: Any) -> None:
        """Take an accepted connection, if it is of this user."""
        if not is_own(sock, address):
            sock.close()
        elif len(self._peers) + len(self._openings) >= MAX_PEERS:
            log.warning("%d connections are open, and one more was refused: see what opens them", MAX_PEERS)
            sock.close()
        else:
            tune(sock)
            task = self._loop.create_task(self._open(sock))
            self._openings.add(task)
            task.add_done_callback(self._openings.discard)

    def accept_for_page(self, sock: socket.socket, address: Any) -> None:
        """Take an accepted connection at the port of the page, if it is of this user."""
        if is_own(sock, address):
            self._page_server(sock, address)
        else:
            sock.close()

    async def _open(self, sock: socket.socket) -> None:
        try:
            greeting = await asyncio.wait_for(_greeting(sock), OPENING_S)
            if greeting is None:
                self._peers[TrackerPeer(sock, self.state, self._open_link, self._report, self._peers.pop)] = None
            else:
                await self.sessions.join(sock, greeting, self.state.session(greeting, self._loop.time()))
        except first_bytes.OtherProtocol as error:
            drain_and_close(sock, first_bytes.answer(first_bytes.TRACKER, error.kind))
        except ConnectError as error:
            log.warning("%s", one_line(error))
            drain_and_close(sock, handshake.encode_mismatch())
        except (ProtocolError, OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError):
            drain_and_close(sock)

    def _open_link(self) -> Link:
        """A new connection to the lab's tracker, inside TLS, with this user's credential as its file is now."""
        return link_to(self._tracker)

    def _report(self, why: str) -> None:
        """Log why the tracker is lost; the same reason once in a while: clients try again at once."""
        now = self._loop.time()
        if (why, True) != (self._reported[0], now < self._reported[1] + LOG_EVERY_S):
            self._reported = why, now
            log.warning("%s", why)

    def _tick(self) -> None:
        self.pages.advance()
        for peer in list(self._peers):
            peer.advance()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def close(self) -> None:
        """End all connections."""
        self._timer.cancel()
        for task in self._openings:
            task.cancel()
        for peer in list(self._peers):
            peer.close()
        self.sessions.close()
        self.pages.close()


async def _greeting(sock: socket.socket) -> Greeting | None:
    """The greeting that a session's connection begins with; None for a connection to the tracker."""
    loop = asyncio.get_running_loop()
    head = b""
    while len(head) < len(MAGIC_BYTES):
        head += await _some(loop, sock, len(MAGIC_BYTES) - len(head))
    if head == MAGIC_BYTES:
        return None
    reader = handshake.OpeningReader()
    greeting = reader.receive(head)
    while greeting is None:
        greeting = reader.receive(await _some(loop, sock, reader.needed))
    return greeting


async def _some(loop: asyncio.AbstractEventLoop, sock: socket.socket, most: int) -> bytes:
    data = await loop.sock_recv(sock, most)
    if not data:
        raise EOFError
    return data


def find_lab(given: Address | None) -> tuple[Address, Credential]:
    """The tracker's address and this user's credential: of the ``given`` tracker, else the only one there is.

    Raises `Unauthorized`: there is none; `ConfigError`: one is damaged, or there are several.
    """
    # TVM's own variables mostly point to the forwarder itself.
    if given is None and (os.environ.get("RPCSYS_TRACKER") or os.environ.get("RPCSYS_TRACKER_HOST")):
        given = tracker_defaults()
    if given is not None:
        found = credential.for_replicas(given)
        if found is None:
            raise Unauthorized(f"the lab at {tracker_text(given)} wants credentials: {_NO_CREDENTIAL}")
        return given, found
    known = credential.held()
    if not known:
        raise Unauthorized(f"there is no credential of a lab here: {_NO_CREDENTIAL}")
    if len(known) > 1:
        labs = ", ".join(each.trackers[0] for each in known)
        raise ConfigError(f"you have credentials of {len(known)} labs: give one with --tracker ({labs})")
    return parse_address(known[0].trackers[0]), known[0]


async def serve(config: ForwardConfig) -> int:
    """Forward until a signal; the exit status.

    Raises `RpcsysError`: no credential, a port that is taken, or a tracker that does not let this user in.
    """
    raise_descriptor_limit()
    leave_no_core()
    listener = flags.listen(config.listen)
    web = flags.listen((config.listen[0], config.page), "--page") if config.page else None
    tracker, own = find_lab(config.tracker)
    host, port = listener.getsockname()[:2]
    open_link(tracker).close()  # whoever cannot come in is told now
    async with serving() as (signals, closing):
        service = ForwardService((host, port), tracker)
        closing.callback(service.close)
        closing.callback(Acceptor(listener, service.accept).close)
        if web is not None:
            closing.callback(Acceptor(web, service.accept_for_page).close)
            log.info("the lab's page is at http://%s/", address_text(host, config.page))
        where = address_text(host, port), own.lab, tracker_text(tracker), own.member
        log.info("%s leads to lab %s at %s, as %s", *where)
        announce("connect", host, port, http_port=config.page or None)
        await until_signal(signals, asyncio.Event())
        notify("STOPPING=1")
    return 0
