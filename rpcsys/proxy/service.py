"""The proxy's sockets: reads openings, gives events to the state and carries out its actions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

from rpcsys.daemon.acceptor import Acceptor, leave_no_core, raise_descriptor_limit
from rpcsys.daemon.guard import metrics_guard
from rpcsys.daemon.http import health_page, metrics_page, serve_pages
from rpcsys.daemon.loop import serving, until_signal
from rpcsys.daemon.relay import Pair, Relay
from rpcsys.daemon.sockets import ENDED, Sockets
from rpcsys.errors import ProtocolError
from rpcsys.link import credential
from rpcsys.link.admission import Admission, own_address
from rpcsys.link.openings import Openings
from rpcsys.link.tcp import KEEPALIVE_S, drain_and_close, keep_alive, tune
from rpcsys.logs import note
from rpcsys.proxy import events as ev
from rpcsys.proxy.config import ProxyConfig
from rpcsys.proxy.metrics import CHAINED, CLOSED, LINK, SESSION, ProxyMetrics
from rpcsys.proxy.state import DUPLICATE, MISMATCH, ProxyState
from rpcsys.proxy.streams import ProxyStream, send_first
from rpcsys.proxy.tracker_link import ProxyTrackerLink
from rpcsys.proxy.upstream import Upstream
from rpcsys.proxy.websocket import serve_websockets
from rpcsys.serve import Signals, announce, bind, notify
from rpcsys.wire import first_bytes, frames, handshake, tracker
from rpcsys.wire.control import NO_CONTROL_LINK
from rpcsys.wire.pinned_keys import public_name

log = logging.getLogger(__name__)
SWEEP_S = 1.0

_ANSWERS = {DUPLICATE: handshake.encode_duplicate(), MISMATCH: handshake.encode_mismatch(), "": b""}


class ProxyService:
    """A proxy. To be made inside its event loop; `open` starts it."""

    def __init__(self, config: ProxyConfig) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.port = 0
        self.state = ProxyState(config)
        self.openings: Openings[ProxyStream] = Openings(config.max_waiting)
        self.waiting: dict[int, ProxyStream] = {}
        self.pairs: dict[Pair, str] = {}
        self.idle = asyncio.Event()
        self.tracker: ProxyTrackerLink | None = None
        self._linked_to = config.tracker  # the replica of the tracker to which links are relayed
        self.sockets = Sockets()
        self.relay = Relay(self.sockets)
        self.metrics = ProxyMetrics(self.state, self.openings, self.pairs, self.relay.pool)
        self._numbers = 0
        self._draining = False
        self._upstream = Upstream(config, self._relay)
        self._served = Admission(config.admit)
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        self._keeper = self.loop.call_later(KEEPALIVE_S, self._keep_alive)

    def open(self, port: int) -> None:
        """Start: streams are accepted at ``port``. Connects to the tracker, if there is one."""
        self.port = port
        self._public_port = self._upstream.port = self.config.public_port or port
        if self.config.tracker is not None:
            self.tracker = self.metrics.tracker = ProxyTrackerLink(
                self.config.tracker,
                self.config.lab,
                self._tracker_up,
                lambda: self.perform(ev.TrackerDown()),
                lambda match_keys: self.perform(ev.KeysPending(self.loop.time(), match_keys, self._fresh())),
            )

    def _tracker_up(self) -> None:
        """Cut the links that were relayed to another replica of the tracker: it hangs perhaps, and they follow."""
        assert self.tracker is not None
        if self._linked_to != self.tracker.address:
            self._linked_to = self.tracker.address
            for pair in [pair for pair, kind in self.pairs.items() if kind == LINK]:
                pair.close()
        self.perform(ev.TrackerUp(self._fresh()))

    def _fresh(self) -> tuple[str, ...]:
        return _random_parts(len(self.state.offers.streams))

    # New streams

    def accept(self, sock: socket.socket, address: Any) -> None:
        """Add an accepted stream; ``address`` as `accept` returned it."""
        tune(sock)
        stream = ProxyStream(sock, address)
        stream.refusal = self._served.refusal("proxy", stream.address, own_address(sock))
        self.metrics.accepted += 1
        crowding = self.openings.add(stream, stream.where, self.loop.time())
        if crowding is not None:
            self._drop_opening(crowding, "too many say nothing, most of them from there")
        self.loop.add_reader(sock.fileno(), self._read, stream)
        self._read(stream)

    def _read(self, stream: ProxyStream) -> None:
        try:
            whole = stream.read_opening()
        except ProtocolError as error:
            wanted = error.kind if isinstance(error, first_bytes.OtherProtocol) else None
            self._drop_opening(stream, str(error), first_bytes.answer(first_bytes.SESSION, wanted))
        except (EOFError, OSError):
            self._drop_opening(stream, "")
        else:
            if whole:
                self.openings.remove(stream)
                self.loop.remove_reader(stream.sock.fileno())
                if stream.refusal:
                    self._turn_stranger_away(stream)
                else:
                    self._opened(stream)

    def _drop_opening(self, stream: ProxyStream, reason: str, last_words: bytes = b"") -> None:
        self.openings.remove(stream)
        self.loop.remove_reader(stream.sock.fileno())
        drain_and_close(stream.sock, last_words)
        if reason:
            self.metrics.dropped += 1
            log.info("stream from %s dropped: %s", stream.where, reason, extra={"stranger": stream.address})

    def _turn_stranger_away(self, stream: ProxyStream) -> None:
        """Refuse a stream from a network that is not served, in the sentence that its protocol has for it, if any."""
        greeting, why = stream.greeting, stream.refusal
        if greeting is None:
            last_words = tracker.MAGIC_BYTES + tracker.encode({"ok": False, "error": "Forbidden", "message": why})
        elif greeting.role == handshake.CLIENT and greeting.options.session:
            success = handshake.Greeting(handshake.SERVER, greeting.key, handshake.Options(session=handshake.SESSION))
            fields = {"type": "ServerRefused", "message": why, "traceback": "", "retryable": False, "fault": "network"}
            last_words = b"".join([handshake.encode_greeting(success), *frames.encode(frames.ERROR, 0, fields)])
        else:
            last_words = _ANSWERS[MISMATCH]
        self.metrics.dropped += 1
        log.info("stream from %s refused: %s", stream.where, why, extra={"stranger": stream.address})
        drain_and_close(stream.sock, last_words)

    def _opened(self, stream: ProxyStream) -> None:
        if self.config.next is not None:
            self._upstream.relay(stream, self.config.next, LINK if stream.greeting is None else CHAINED)
        elif stream.greeting is None:
            self._link(stream)
        else:
            self._numbers += 1
            stream.conn = self._numbers
            self.waiting[stream.conn] = stream
            self.sockets.add(stream.sock.fileno(), lambda _: self._hung_up(stream), ENDED)
            self._post_opened(stream, stream.greeting)

    def _post_opened(self, stream: ProxyStream, greeting: handshake.Greeting) -> None:
        server, offered = greeting.options.server or "", greeting.options.offered
        fresh = _random_parts(0 if self.tracker is None else 1)
        now, role, key = self.loop.time(), greeting.role, greeting.key
        self.perform(ev.StreamOpened(now, stream.conn, stream.address, role, key, server, offered, fresh))

    def _hung_up(self, stream: ProxyStream) -> None:
        self._take(stream.conn).sock.close()
        self.perform(ev.StreamEnded(stream.conn))

    def _take(self, conn: int) -> ProxyStream:
        stream = self.waiting.pop(conn)
        self.sockets.remove(stream.sock.fileno())
        return stream

    def _link(self, stream: ProxyStream) -> None:
        stranger = {"stranger": stream.address}
        if self._draining:
            stream.sock.close()
        elif self.tracker is not None and self.tracker.trusted and (self.tracker.ours or stream.encrypted):
            self._upstream.relay(stream, self.tracker.address, LINK)
        elif self.tracker is not None and (self.tracker.ours is None or not self.tracker.trusted):
            log.info("link of %s dropped: the tracker has not answered yet", stream.where, extra=stranger)
            stream.sock.close()
        else:
            why = "TVM's tracker, which knows no links" if self.tracker is not None else "no tracker"
            refusal = {"ok": False, "error": NO_CONTROL_LINK, "message": f"the proxy has {why}"}
            log.info("link of %s refused: %s", stream.where, refusal["message"], extra=stranger)
            drain_and_close(stream.sock, tracker.MAGIC_BYTES + tracker.encode(refusal))

    # Actions

    def perform(self, event: ev.Event) -> None:
        """Give an event to the state and carry out its actions."""
        self._act(self.state.apply(event))

    def _act(self, actions: Iterable[ev.Action]) -> None:
        for action in actions:
            if isinstance(action, ev.JoinStreams):
                self._join(action)
            elif isinstance(action, ev.RefuseStream):
                self._refuse(action)
            elif self.tracker is not None:
                self._send_tracker(self.tracker, action)
        self._arm()

    def _send_tracker(self, link: ProxyTrackerLink, action: ev.OfferStream | ev.PresentKeys | ev.Reconnect) -> None:
        host = self.config.public
        if isinstance(action, ev.OfferStream):
            link.give(tracker.Put(action.key, self._public_port, action.match_key, host))
        elif isinstance(action, ev.PresentKeys):
            link.give(tracker.UpdateInfo(f"server:proxy[{','.join(action.keys)}]", host, self._public_port))
        else:
            self.loop.call_soon(link.reconnect)

    def _join(self, action: ev.JoinStreams) -> None:
        client, server = self.waiting[action.client], self.waiting[action.server]
        for one, other in ((server, client), (client, server)):
            if not send_first(one.sock, other.raw):
                # It has just died. The other stream is not joined yet.
                self._take(one.conn).sock.close()
                self.loop.call_soon(self._after_hangup, one, other, action.server)
                return
        self._take(client.conn)
        self._take(server.conn)
        self.metrics.joined(action.key)
        note(log, logging.INFO, "joined", key=action.key, client=client.where, server=server.where)
        self._relay(client.sock, server.sock, SESSION, lambda: self.perform(ev.StreamEnded(action.server)))

    def _after_hangup(self, dead: ProxyStream, other: ProxyStream, server: int) -> None:
        self.perform(ev.StreamEnded(server))
        if other.conn not in self.waiting:
            return  # it has ended as well
        if dead.conn == server and other.greeting is not None:
            self._post_opened(other, other.greeting)
        else:
            self._take(other.conn).sock.close()  # it already has the greeting of the dead client

    def _relay(self, left: socket.socket, right: socket.socket, kind: str, on_end: Callable[[], None]) -> None:
        """Relay between two streams; ``on_end`` is called when both have ended."""

        def ended(pair: Pair) -> None:
            del self.pairs[pair]
            self.metrics.ended(kind, pair)
            if self._draining and not self.pairs:
                self.idle.set()
            on_end()

        pair = Pair(self.relay, left, right, ended)
        self.pairs[pair] = kind
        pair.start()

    def _refuse(self, action: ev.RefuseStream) -> None:
        stream = self._take(action.conn)
        self.metrics.refused[action.code or CLOSED] += 1
        key = stream.greeting.key if stream.greeting is not None else ""
        said = public_name(key)  # a secret that a client says in the clear is in no log
        fields = {"key": said, "peer": stream.where, "reason": action.reason.replace(key, said)}
        log.info("refused", extra={"fields": fields, "stranger": stream.address})
        drain_and_close(stream.sock, _ANSWERS[action.code])

    # Timers

    def _arm(self) -> None:
        due = self.state.next_deadline
        if self._timer is not None:
            if due is not None and self._timer.when() <= due:
                return  # an early timer is harmless: it sets the next one
            self._timer.cancel()
        self._timer = None if due is None else self.loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._act(self.state.expire(self.loop.time()))

    def _sweep(self) -> None:
        for stream in self.openings.late(self.loop.time()):
            self._drop_opening(stream, "it did not finish its opening")
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def _keep_alive(self) -> None:
        for pair in self.pairs:
            for flow in pair.flows:
                keep_alive(flow.sink)
        self._keeper = self.loop.call_later(KEEPALIVE_S, self._keep_alive)

    # The end

    def drain(self) -> None:
        """End openings, waiting streams, offers and links; `idle` is set when no session is left."""
        self._draining = True
        self._upstream.stop()
        if self.tracker is not None:
            self.tracker.close()
        for stream in self.openings.all():
            self._drop_opening(stream, "")
        self.perform(ev.Draining())
        for pair, kind in list(self.pairs.items()):
            # A link would go on offering servers that no client can reach here. A stream that the next proxy has not
            # answered waits there.
            if kind == LINK or (kind == CHAINED and not pair.flows[1].moved):
                pair.close()
        if not self.pairs:
            self.idle.set()

    def close(self) -> None:
        """End all that is left: timers, dials, pairs and the epoll."""
        for timer in (self._sweeper, self._keeper, self._timer):
            if timer is not None:
                timer.cancel()
        self._upstream.stop()
        for pair in list(self.pairs):
            pair.close()
        self.sockets.close()


def _random_parts(count: int) -> tuple[str, ...]:
    return tuple(os.urandom(16).hex() for _ in range(count))


async def serve(config: ProxyConfig) -> int:
    """Serve until a signal, then until the sessions have ended, at most for the grace; the exit status.

    Raises PortRangeError or ConfigError, as `rpcsys.serve.bind` and `credential.check` do.
    """
    raise_descriptor_limit()
    if config.lab:
        credential.check(config.lab)
        leave_no_core()
    listener = bind(config.host, config.port, config.port_end)
    pages_at = (("--web-port", config.web_port), ("--http-port", config.http_port))
    web, http = (bind(config.host, port, port + 1, flag) if port else None for flag, port in pages_at)
    async with serving() as (signals, closing):
        service = ProxyService(config)
        closing.callback(service.close)
        if http is not None:
            pages = {"/healthz": health_page, "/metrics": metrics_page(service.metrics)}
            guard = metrics_guard("proxy", config.http_open) if config.lab else None
            closing.callback(serve_pages(http, pages, guard).close)
        with contextlib.ExitStack() as accepting:
            accepting.callback(Acceptor(listener, service.accept).close)
            if web is not None:
                accepting.callback(serve_websockets(web, service.accept, config.web_origins).close)
            service.open(listener.getsockname()[1])
            log.info("serving on %s:%d", config.host, service.port)
            others = {"http_port": config.http_port or None, "web_port": config.web_port or None}
            announce("proxy", config.host, service.port, **others)
            await until_signal(signals, asyncio.Event())
            notify("STOPPING=1")
        await _drain(service, signals, config.grace)
    return 0


async def _drain(service: ProxyService, signals: Signals, grace: float) -> None:
    """Wait for sessions to end, until the grace is over or a second signal arrives."""
    signals.received()
    service.drain()
    if service.pairs:
        log.info("stopping; %d streams have %g s to end", len(service.pairs), grace)
    try:
        await asyncio.wait_for(until_signal(signals, service.idle), grace)
    except asyncio.TimeoutError:
        log.info("%d streams cut off", len(service.pairs))
