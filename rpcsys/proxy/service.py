"""The proxy's sockets: openings in, events to the state, actions out. It decides nothing about who meets whom."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from rpcsys.daemon.acceptor import Acceptor, raise_descriptor_limit
from rpcsys.daemon.http import serve_pages
from rpcsys.daemon.log_handler import BatchLogHandler
from rpcsys.daemon.loop import until_signal
from rpcsys.errors import ProtocolError
from rpcsys.link import KEEPALIVE_S, drain_and_close, keep_alive
from rpcsys.logs import note
from rpcsys.proxy.config import Config
from rpcsys.proxy.events import (
    Action,
    Draining,
    Event,
    Join,
    Left,
    Offer,
    Opened,
    Pending,
    Present,
    Reconnect,
    Refuse,
    Started,
    Tick,
    TrackerDown,
    TrackerUp,
)
from rpcsys.proxy.figures import Figures
from rpcsys.proxy.hangups import ENDED, Hangups
from rpcsys.proxy.onward import Onward
from rpcsys.proxy.opening import Opening
from rpcsys.proxy.relay import Pair, Relay
from rpcsys.proxy.state import DUPLICATE, State
from rpcsys.proxy.stream import Stream, send_whole
from rpcsys.proxy.trackerlink import TrackerLink
from rpcsys.proxy.web import serve_websockets
from rpcsys.serve import Signals, announce, bind, notify, tune
from rpcsys.wire import handshake, tracker
from rpcsys.wire.control import NO_CONTROL_LINK

log = logging.getLogger(__name__)

OPENING_S = 8.0
"""An opening must be whole after so long, so that a stream is dropped within 10 s."""

SWEEP_S = 1.0

SESSION, LINK, CHAINED = "session", "link", "chained"
"""What is relayed: a client with its server, a server's link to the tracker, whatever there is to the next proxy."""

_CODES = {DUPLICATE: handshake.encode_duplicate(), "mismatch": handshake.encode_mismatch(), "": b""}


class Service:
    """A running proxy. To be made inside its event loop; `open` begins its work."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.port = 0
        self.figures = Figures(self)
        self.strangers: dict[Stream, None] = {}
        self.waiting: dict[int, Stream] = {}
        self.pairs: dict[Pair, str] = {}
        self.idle = asyncio.Event()
        self.tracker: TrackerLink | None = None
        self.hangups = Hangups()
        self.relay = Relay(self.hangups)
        self._numbers = 0
        self._draining = False
        self._onward = Onward(config, self._begin)
        self._timer: asyncio.TimerHandle | None = None
        self.state = State(
            Started(
                self.loop.time(),
                config.tracker is not None,
                config.timeout_client,
                config.timeout_server,
                config.max_waiting,
                config.max_waiting_per_address,
            )
        )
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        self._looker = self.loop.call_later(KEEPALIVE_S, self._look)

    def open(self, port: int) -> None:
        """Streams may come, at ``port``."""
        self.port = self._onward.port = port
        if self.config.tracker is not None:
            self.tracker = TrackerLink(self.config.tracker, self._tracker_up, self._tracker_down, self._pending)

    # Streams come.

    def accept(self, sock: socket.socket, address: Any) -> None:
        """Take in a stream that has just been accepted; ``address`` as `accept` gave it."""
        tune(sock)
        due = self.loop.time() + OPENING_S
        host = str(address[0]).removeprefix("::ffff:") if address else ""
        stream = Stream(sock, host, address[1] if address else 0, Opening(sock), due)
        self.figures.accepted += 1
        self.strangers[stream] = None
        self.loop.add_reader(sock.fileno(), self._read, stream)
        self._read(stream)

    def _read(self, stream: Stream) -> None:
        try:
            whole = stream.opening.read()
        except ProtocolError as error:
            self._drop_stranger(stream, str(error))
        except (EOFError, OSError):
            self._drop_stranger(stream, "")
        else:
            if whole:
                del self.strangers[stream]
                self.loop.remove_reader(stream.sock.fileno())
                self._opened(stream)

    def _drop_stranger(self, stream: Stream, reason: str) -> None:
        del self.strangers[stream]
        self.loop.remove_reader(stream.sock.fileno())
        stream.sock.close()
        if reason:
            self.figures.dropped += 1
            log.info("stream from %s dropped: %s", stream.where, reason, extra={"stranger": stream.address})

    def _opened(self, stream: Stream) -> None:
        said = stream.opening.greeting
        if self.config.next is not None:
            self._onward.relay(stream, self.config.next, CHAINED if said is not None else LINK)
        elif said is None:
            self._link(stream)
        else:
            self._numbers += 1
            stream.conn, stream.key = self._numbers, said.key
            self.waiting[stream.conn] = stream
            self.hangups.add(stream.sock, ENDED, lambda: self._hung_up(stream))
            self._tell_state(stream)

    def _tell_state(self, stream: Stream) -> None:
        said = stream.opening.greeting
        assert said is not None
        server = said.options.server or ""
        self.perform(
            Opened(
                self.loop.time(),
                stream.conn,
                stream.address,
                said.role,
                said.key,
                server,
                said.options.offered,
                _fresh(1 if self.tracker is not None else 0),
            )
        )

    def _hung_up(self, stream: Stream) -> None:
        self._close_waiting(stream.conn)
        self.perform(Left(self.loop.time(), stream.conn))

    def _close_waiting(self, conn: int) -> None:
        stream = self.waiting.pop(conn)
        self.hangups.remove(stream.sock)
        stream.sock.close()

    # Links to the tracker, and chains.

    def _link(self, stream: Stream) -> None:
        """A server of ours wants to speak with the tracker."""
        if self._draining:
            stream.sock.close()
        elif self.tracker is not None and self.tracker.ours:
            assert self.config.tracker is not None
            self._onward.relay(stream, self.config.tracker, LINK)
        elif self.tracker is not None and self.tracker.ours is None:
            stranger = {"stranger": stream.address}
            log.info("link of %s dropped: the tracker has not answered yet", stream.where, extra=stranger)
            stream.sock.close()
        else:
            why = "TVM's tracker, which knows no links" if self.tracker is not None else "no tracker"
            refusal = {"ok": False, "error": NO_CONTROL_LINK, "message": f"the proxy has {why}"}
            stranger = {"stranger": stream.address}
            log.info("link of %s refused: %s", stream.where, refusal["message"], extra=stranger)
            drain_and_close(stream.sock, tracker.MAGIC_BYTES + tracker.encode(refusal))

    # Actions.

    def perform(self, event: Event) -> None:
        """Give an event to the state and do what it says."""
        for action in self.state.apply(event):
            self._act(action)
        self._arm()

    def _act(self, action: Action) -> None:
        if isinstance(action, Join):
            self._join(action)
        elif isinstance(action, Refuse):
            self._refuse(action)
        elif self.tracker is None:
            return
        elif isinstance(action, Offer):
            self.tracker.offer(action.key, self.port, action.match_key, self.config.public)
        elif isinstance(action, Present):
            self.tracker.present(action.keys, self.port, self.config.public)
        elif isinstance(action, Reconnect):
            self.loop.call_soon(self.tracker.reconnect)

    def _join(self, action: Join) -> None:
        client, server = self.waiting[action.client], self.waiting[action.server]
        for one, other in ((server, client), (client, server)):
            if not send_whole(one.sock, bytes(other.opening.raw)):
                # It has just died: to the other, nobody came yet.
                self._close_waiting(one.conn)
                self.loop.call_soon(self._after_death, one, other, action.server)
                return
        for one in (client, server):
            del self.waiting[one.conn]
            self.hangups.remove(one.sock)
        self.figures.joined(action.key)
        note(log, logging.INFO, "joined", key=action.key, client=client.where, server=server.where)

        def over() -> None:
            self.perform(Left(self.loop.time(), action.server))

        self._begin(client.sock, server.sock, SESSION, over)

    def _after_death(self, dead: Stream, other: Stream, server: int) -> None:
        self.perform(Left(self.loop.time(), server))
        if other.conn not in self.waiting:
            return  # it has left as well
        if dead.conn == server:
            self._tell_state(other)
        else:
            self._close_waiting(other.conn)  # it has been told of a client that is gone

    def _begin(self, left: socket.socket, right: socket.socket, kind: str, over: Callable[[], None]) -> None:
        """Relay between two streams; ``over`` is called when both have ended."""

        def ended(pair: Pair) -> None:
            self._ended(pair)
            over()

        pair = Pair(self.relay, left, right, ended)
        self.pairs[pair] = kind
        pair.start()

    def _ended(self, pair: Pair) -> None:
        kind = self.pairs.pop(pair)
        self.figures.ended(kind, pair)
        if self._draining and not self.pairs:
            self.idle.set()

    def _refuse(self, action: Refuse) -> None:
        stream = self.waiting.pop(action.conn)
        self.hangups.remove(stream.sock)
        self.figures.refused[action.code or "closed"] += 1
        fields = {"key": stream.key, "peer": stream.where, "reason": action.reason}
        log.info("refused", extra={"fields": fields, "stranger": stream.address})
        drain_and_close(stream.sock, _CODES[action.code])

    # The tracker.

    def _tracker_up(self) -> None:
        self.perform(TrackerUp(self.loop.time(), _fresh(len(self.state.offers))))

    def _tracker_down(self) -> None:
        self.perform(TrackerDown(self.loop.time()))

    def _pending(self, match_keys: tuple[str, ...]) -> None:
        self.perform(Pending(self.loop.time(), match_keys, _fresh(len(self.state.offers))))

    # Time.

    def _arm(self) -> None:
        due = self.state.next_deadline
        if self._timer is not None:
            if due is not None and self._timer.when() <= due:
                return  # a tick too early does no harm, and sets the next
            self._timer.cancel()
        self._timer = None if due is None else self.loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.perform(Tick(self.loop.time()))

    def _sweep(self) -> None:
        """Drop who began an opening and fell silent; the first in line has been here longest."""
        now = self.loop.time()
        while self.strangers:
            stream = next(iter(self.strangers))
            if stream.due > now:
                break
            self._drop_stranger(stream, "it did not finish its opening")
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def _look(self) -> None:
        for pair in self.pairs:
            for flow in pair.flows:
                keep_alive(flow.sink)
        self._looker = self.loop.call_later(KEEPALIVE_S, self._look)

    # The end.

    def drain(self) -> None:
        """Nobody waits any more, and nothing is offered; `idle` is set when no session runs."""
        self._draining = True
        self._onward.stop()
        if self.tracker is not None:
            self.tracker.close()
        for stream in list(self.strangers):
            self._drop_stranger(stream, "")
        self.perform(Draining(self.loop.time()))
        for pair, kind in list(self.pairs.items()):
            # A link would go on offering what cannot be reached here any more; and a stream that the next proxy has
            # not answered waits there.
            if kind == LINK or (kind == CHAINED and not pair.flows[1].moved):
                pair.close()
        if not self.pairs:
            self.idle.set()

    def close(self) -> None:
        """End all that is left."""
        self._sweeper.cancel()
        self._looker.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._onward.stop()
        for pair in list(self.pairs):
            pair.close()
        self.hangups.close()


def _fresh(count: int) -> tuple[str, ...]:
    """Random parts of match keys: 128 bits each, from the operating system."""
    return tuple(os.urandom(16).hex() for _ in range(count))


async def serve(config: Config) -> int:
    """Serve until a signal comes, then for as long as sessions last, at most the grace; the exit status.

    Raises
    ------
    PortRangeError, ConfigError: as `rpcsys.serve.bind`.
    """
    raise_descriptor_limit()
    listener = bind(config.host, config.port, config.port_end)
    web, http = (bind(config.host, port, port + 1) if port else None for port in (config.web_port, config.http_port))
    signals = Signals()
    log_handler = BatchLogHandler()
    service = Service(config)
    doors = [Acceptor(listener, service.accept)]
    if web is not None:
        doors.append(serve_websockets(web, service.accept, config.web_origins))
    pages = serve_pages(http, service.figures.pages()) if http is not None else None
    try:
        service.open(doors[0].port)
        log.info("serving on %s:%d", config.host, service.port)
        announce(
            "proxy", config.host, service.port, http_port=config.http_port or None, web_port=config.web_port or None
        )
        await until_signal(signals, asyncio.Event())
        notify("STOPPING=1")
        while doors:
            doors.pop().close()
        await _drain(service, signals, config.grace)
    finally:
        for acceptor in (*doors, *([pages] if pages is not None else [])):
            acceptor.close()
        service.close()
        signals.close()
        await asyncio.sleep(0)  # what was cancelled ends in the loop's next turn
        log_handler.close()
    return 0


async def _drain(service: Service, signals: Signals, grace: float) -> None:
    """Let sessions end by themselves, until the grace is over or a second signal comes."""
    signals.received()
    service.drain()
    sessions = len(service.pairs)
    if sessions:
        log.info("stopping; %d streams have %g s to end", sessions, grace)
    try:
        await asyncio.wait_for(until_signal(signals, service.idle), grace)
    except asyncio.TimeoutError:
        log.info("%d streams cut off", len(service.pairs))
